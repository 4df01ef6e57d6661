#include "daemon/telemetry/telemetry.h"

#include <unistd.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include "common/errno_status.h"
#include "common/generated_section.h"
#include "common/loopback_address.h"
#include "common/status_matchers.h"
#include "common/unique_fd.h"
#include "daemon/telemetry/metric_table.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// --- A scraper: HTTP over a socket, and a reader of the exposition format ---

UniqueFd ConnectTo(const std::string& address_text) {
  const LoopbackAddress address = ParseLoopbackAddress(address_text).value();
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &where.sin_addr);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
  return fd;
}

struct HttpResponse {
  std::string head;
  std::string body;
};

HttpResponse Get(const std::string& address, const std::string& path) {
  const UniqueFd fd = ConnectTo(address);
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  ssize_t bytes = 0;
  while ((bytes = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, static_cast<size_t>(bytes));
  }
  const std::vector<std::string> parts = absl::StrSplit(answer, absl::MaxSplits("\r\n\r\n", 1));
  return {.head = parts[0], .body = parts.size() > 1 ? parts[1] : ""};
}

struct Exposition {
  std::map<std::string, std::string> help;
  std::map<std::string, std::string> type;
  // "name{label="value",...}" -> value.
  std::map<std::string, double> samples;

  double At(const std::string& series) const {
    const auto found = samples.find(series);
    EXPECT_NE(found, samples.end()) << series << " is missing";
    return found == samples.end() ? -1 : found->second;
  }
};

Exposition Parse(const std::string& text) {
  Exposition exposition;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const bool is_help = absl::ConsumePrefix(&line, "# HELP ");
    if (is_help || absl::ConsumePrefix(&line, "# TYPE ")) {
      const std::pair<std::string, std::string> entry =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      auto& lines = is_help ? exposition.help : exposition.type;
      EXPECT_TRUE(lines.insert(entry).second) << "twice: " << line;
      continue;
    }
    const size_t space = line.rfind(' ');
    double value = 0;
    EXPECT_TRUE(space != absl::string_view::npos && line[0] != '#' &&
                absl::SimpleAtod(line.substr(space + 1), &value))
        << "not the exposition format: " << line;
    EXPECT_TRUE(exposition.samples.emplace(std::string(line.substr(0, space)), value).second)
        << "twice: " << line;
  }
  return exposition;
}

Exposition Scrape(const Telemetry& telemetry) {
  const HttpResponse response = Get(telemetry.address(), "/metrics");
  EXPECT_THAT(response.head, HasSubstr(" 200 OK"));
  return Parse(response.body);
}

std::unique_ptr<Telemetry> MakeTelemetry(const std::string& address = "127.0.0.1:0") {
  absl::StatusOr<std::unique_ptr<Telemetry>> telemetry =
      Telemetry::Create({.address = address, .daemon_version = "1.2.3"});
  EXPECT_OK(telemetry);
  return *std::move(telemetry);
}

// --- Staged checkpoints of which only the figures are real ---

std::vector<std::byte> CatalogBytesOf(const std::string& shard_name) {
  CatalogShard shard;
  shard.name = shard_name;
  absl::StatusOr<std::vector<std::byte>> bytes = BuildCatalog({shard});
  EXPECT_OK(bytes);
  return *std::move(bytes);
}

class StagedCheckpointFake : public StagedCheckpoint {
 public:
  StagedCheckpointFake(const std::string& name, const StagingProgress& progress)
      : label_(name),
        catalog_bytes_(CatalogBytesOf(name)),
        catalog_(CatalogView::FromBytes(catalog_bytes_).value()),
        progress_(progress) {}

  std::string signature_hex() const {
    std::string hex;
    for (const uint8_t byte : catalog_.signature())
      absl::StrAppend(&hex, absl::Hex(byte, absl::kZeroPad2));
    return hex;
  }

  const std::string& path_label() const override { return label_; }
  const CatalogView& catalog() const override { return catalog_; }
  const ExtentMap& extents() const override { return extents_; }
  int catalog_fd() const override { return -1; }
  int board_fd() const override { return -1; }
  absl::Status AddDemand(SessionId, absl::Span<const DemandItem>) override {
    return absl::OkStatus();
  }
  void AddDemandForEverything(SessionId) override {}
  void AddUrgent(SessionId, absl::Span<const uint64_t>) override {}
  void RemoveSession(SessionId) override {}
  StagingProgress progress() const override { return progress_; }
  uint64_t CacheableBytes() const override { return 0; }
  uint64_t CachedBytes() const override { return 0; }
  std::vector<std::string> read_errors() const override { return {}; }
  void Stop() override {}

 private:
  const std::string label_;
  const std::vector<std::byte> catalog_bytes_;
  const CatalogView catalog_;
  const ExtentMap extents_{{}, kExtentBytesDefault};
  const StagingProgress progress_;
};

class CheckpointStoreFake : public CheckpointStore {
 public:
  std::vector<std::shared_ptr<StagedCheckpoint>> checkpoints;
  std::vector<MountFlight> flights;

  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(const std::string&,
                                                            std::vector<ReceivedShard>,
                                                            size_t) override {
    return absl::UnimplementedError("fake");
  }
  std::vector<std::shared_ptr<StagedCheckpoint>> List() const override { return checkpoints; }
  void Stop() override {}
  std::string reader_name() const override { return "fake"; }
  std::string reader_reason() const override { return "fake"; }
  std::vector<MountFlight> Flights() const override { return flights; }
};

// --- The endpoint ---

TEST(TelemetryTest, EveryMetricOfTheTableIsServedWithHelpAndType) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  const Exposition exposition = Scrape(*telemetry);
  for (const MetricDescription& row : MetricTable()) {
    const std::string name(row.name);
    EXPECT_EQ(exposition.help.count(name) == 1 ? exposition.help.at(name) : "missing", row.help)
        << name;
    EXPECT_EQ(exposition.type.count(name) == 1 ? exposition.type.at(name) : "missing",
              MetricTypeName(row.type))
        << name;
  }
}

TEST(TelemetryTest, NothingIsServedThatTheTableDoesNotHave) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  std::set<std::string> known;
  for (const MetricDescription& row : MetricTable()) known.emplace(row.name);
  for (const auto& [name, type] : Scrape(*telemetry).type) {
    // The exporter counts its own scrapes.
    EXPECT_TRUE(known.contains(name) || absl::StartsWith(name, "exposer_")) << name;
  }
}

TEST(TelemetryTest, EveryListedCombinationOfLabelsStandsAtZeroFromTheStart) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_storage_read_bytes_total{cause=\"stage\"}"), 0);
  EXPECT_EQ(exposition.At("forestage_read_errors_total{class=\"io\"}"), 0);
  EXPECT_EQ(exposition.At("forestage_decisions_total{effective=\"native\",reason=\"group_"
                          "incomplete\"}"),
            0);
  EXPECT_EQ(exposition.At("forestage_consumed_bytes_total"), 0);
  EXPECT_EQ(exposition.At("forestage_build_info{version=\"1.2.3\"}"), 1);
}

TEST(TelemetryTest, TheStartTimeIsThatOfThisProcess) {
  const double before = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  const double after = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const double served = Scrape(*telemetry).At("forestage_process_start_time_seconds");
  // The exposition format may round.
  EXPECT_GE(served, before - 1);
  EXPECT_LE(served, after + 1);
}

TEST(TelemetryTest, ReadsAreCountedByCauseAndTimed) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->OnExtentRead(ReadCause::kStage, 1000, absl::Milliseconds(3));
  telemetry->OnExtentRead(ReadCause::kStage, 24, absl::Milliseconds(40));
  telemetry->OnExtentRead(ReadCause::kDemand, 7, absl::Minutes(2));
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_storage_read_bytes_total{cause=\"stage\"}"), 1024);
  EXPECT_EQ(exposition.At("forestage_storage_read_bytes_total{cause=\"demand\"}"), 7);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_count"), 3);
  EXPECT_NEAR(exposition.At("forestage_extent_read_seconds_sum"), 120.043, 0.001);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_bucket{le=\"0.0025\"}"), 0);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_bucket{le=\"0.005\"}"), 1);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_bucket{le=\"0.05\"}"), 2);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_bucket{le=\"30\"}"), 2);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_bucket{le=\"+Inf\"}"), 3);
}

TEST(TelemetryTest, ReadErrorsAreSortedIntoClasses) {
  const std::pair<absl::Status, const char*> cases[] = {
      {ErrnoStatus(EIO, "read"), "io"},
      {ErrnoStatus(EFAULT, "populate"), "io"},
      {ErrnoStatus(EHOSTDOWN, "read"), "io"},
      {ErrnoStatus(ESTALE, "read"), "stale"},
      {ErrnoStatus(ETIMEDOUT, "read"), "timeout"},
      {absl::DeadlineExceededError("x"), "timeout"},
      {absl::FailedPreconditionError("x"), "changed"},
      {absl::OutOfRangeError("x"), "cut_off"},
      {ErrnoStatus(EACCES, "read"), "permission"},
      {absl::InternalError("x"), "other"},
  };
  std::map<std::string, int> expected;
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  for (const auto& [status, error_class] : cases) {
    telemetry->OnReadError(status);
    ++expected[error_class];
  }
  const Exposition exposition = Scrape(*telemetry);
  for (const auto& [error_class, count] : expected) {
    EXPECT_EQ(
        exposition.At(absl::StrCat("forestage_read_errors_total{class=\"", error_class, "\"}")),
        count);
  }
}

TEST(TelemetryTest, SessionsGroupsDecisionsAndRefusalsAreCounted) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->SetSessions(4);
  telemetry->SetSessions(3);
  telemetry->SetGroups(2);
  telemetry->OnSessionEnded("process_exit");
  telemetry->OnDecision("rank_striped_read_ahead", "chosen_by_daemon");
  telemetry->OnOpenRefused(absl::PermissionDeniedError("x"));
  telemetry->OnOpenRefused(absl::DataLossError("x"));
  telemetry->OnConsumed(100);
  telemetry->OnConsumed(11);
  telemetry->OnMajorFaults(5);
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_sessions_open"), 3);
  EXPECT_EQ(exposition.At("forestage_groups_open"), 2);
  EXPECT_EQ(exposition.At("forestage_sessions_ended_total{outcome=\"process_exit\"}"), 1);
  EXPECT_EQ(exposition.At("forestage_decisions_total{effective=\"rank_striped_read_ahead\","
                          "reason=\"chosen_by_daemon\"}"),
            1);
  EXPECT_EQ(exposition.At("forestage_opens_refused_total{code=\"PERMISSION_DENIED\"}"), 1);
  EXPECT_EQ(exposition.At("forestage_opens_refused_total{code=\"OTHER\"}"), 1);
  EXPECT_EQ(exposition.At("forestage_consumed_bytes_total"), 111);
  EXPECT_EQ(exposition.At("forestage_client_major_faults_total"), 5);
}

TEST(TelemetryTest, WordsOutsideOfTheTableMakeNoSeries) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  const size_t before = Scrape(*telemetry).samples.size();
  for (int i = 0; i < 50; ++i) {
    telemetry->OnSessionEnded(absl::StrCat("outcome ", i));
    telemetry->OnDecision(absl::StrCat("policy ", i), absl::StrCat("\"\n", i));
  }
  const Exposition exposition = Scrape(*telemetry);
  // The exporter's own histogram of scrapes is there from the first scrape on.
  size_t ours = 0;
  for (const auto& [series, value] : exposition.samples) {
    if (absl::StartsWith(series, "forestage_")) ++ours;
  }
  EXPECT_LE(ours, before);
  EXPECT_EQ(exposition.At("forestage_sessions_ended_total{outcome=\"other\"}"), 50);
  EXPECT_EQ(exposition.At("forestage_decisions_total{effective=\"other\",reason=\"other\"}"), 50);
}

TEST(TelemetryTest, CheckpointsAreAskedForAtEachScrape) {
  CheckpointStoreFake store;
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->SetStore(&store);
  EXPECT_EQ(Scrape(*telemetry).At("forestage_checkpoints_staged"), 0);

  const auto checkpoint = std::make_shared<StagedCheckpointFake>(
      "model.safetensors",
      StagingProgress{.wanted_bytes = 30, .resident_bytes = 20, .failed_bytes = 10});
  store.checkpoints.push_back(checkpoint);
  const std::string label = absl::StrCat(
      "{checkpoint=\"", checkpoint->signature_hex().substr(0, kCheckpointLabelDigits), "\"}");
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_checkpoints_staged"), 1);
  EXPECT_EQ(exposition.At("forestage_checkpoint_wanted_bytes" + label), 30);
  EXPECT_EQ(exposition.At("forestage_checkpoint_resident_bytes" + label), 20);
  EXPECT_EQ(exposition.At("forestage_checkpoint_failed_bytes" + label), 10);

  telemetry->SetStore(nullptr);
  const Exposition without = Scrape(*telemetry);
  EXPECT_EQ(without.At("forestage_checkpoints_staged"), 0);
  EXPECT_FALSE(without.samples.contains("forestage_checkpoint_wanted_bytes" + label));
}

TEST(TelemetryTest, ShowsRateAndTimeLeftOfStaging) {
  CheckpointStoreFake store;
  const auto staging = std::make_shared<StagedCheckpointFake>(
      "a.safetensors", StagingProgress{.wanted_bytes = 30,
                                       .resident_bytes = 10,
                                       .bytes_per_second = 8,
                                       .time_left = absl::Milliseconds(2500)});
  const auto stalled = std::make_shared<StagedCheckpointFake>(
      "b.safetensors", StagingProgress{.wanted_bytes = 30, .resident_bytes = 10});
  store.checkpoints = {staging, stalled};
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->SetStore(&store);
  const auto label = [](const StagedCheckpointFake& checkpoint) {
    return absl::StrCat("{checkpoint=\"",
                        checkpoint.signature_hex().substr(0, kCheckpointLabelDigits), "\"}");
  };
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_staging_bytes_per_second" + label(*staging)), 8);
  EXPECT_EQ(exposition.At("forestage_staging_left_seconds" + label(*staging)), 2.5);
  EXPECT_EQ(exposition.At("forestage_staging_bytes_per_second" + label(*stalled)), 0);
  // Unknown is no series, so that nobody takes a number for it.
  EXPECT_FALSE(exposition.samples.contains("forestage_staging_left_seconds" + label(*stalled)));
  telemetry->SetStore(nullptr);
}

TEST(TelemetryTest, CheckpointsBeyondTheLimitAreAddedUp) {
  CheckpointStoreFake store;
  for (size_t i = 0; i < kCheckpointLabelsMax + 3; ++i) {
    store.checkpoints.push_back(std::make_shared<StagedCheckpointFake>(
        absl::StrCat("model-", i, ".safetensors"), StagingProgress{.wanted_bytes = 5}));
  }
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->SetStore(&store);
  const Exposition exposition = Scrape(*telemetry);
  size_t series = 0;
  for (const auto& [name, value] : exposition.samples) {
    if (absl::StartsWith(name, "forestage_checkpoint_wanted_bytes{")) ++series;
  }
  EXPECT_EQ(series, kCheckpointLabelsMax + 1);
  EXPECT_EQ(exposition.At("forestage_checkpoint_wanted_bytes{checkpoint=\"other\"}"), 15);
  EXPECT_EQ(exposition.At("forestage_checkpoints_staged"), kCheckpointLabelsMax + 3);
  telemetry->SetStore(nullptr);
}

TEST(TelemetryTest, ShowsWhatIsReadOfEachMountAndWhatIsStuck) {
  CheckpointStoreFake store;
  store.flights.push_back({.device = makedev(8, 1),
                           .in_flight_bytes = 3,
                           .limit_bytes = 9,
                           .stuck_bytes = 2,
                           .bytes_per_second_max = 7});
  for (unsigned i = 0; i < kMountLabelsMax + 1; ++i) {
    store.flights.push_back(
        {.device = makedev(0, 100 + i), .in_flight_bytes = 1, .limit_bytes = 4});
  }
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  telemetry->SetStore(&store);
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_mount_in_flight_bytes{mount=\"8:1\"}"), 3);
  EXPECT_EQ(exposition.At("forestage_mount_in_flight_limit_bytes{mount=\"8:1\"}"), 9);
  EXPECT_EQ(exposition.At("forestage_mount_stuck_bytes{mount=\"8:1\"}"), 2);
  EXPECT_EQ(exposition.At("forestage_mount_read_limit_bytes_per_second{mount=\"8:1\"}"), 7);
  EXPECT_FALSE(
      exposition.samples.contains("forestage_mount_read_limit_bytes_per_second{mount=\"0:100\"}"));
  // Those beyond the limit are added up.
  EXPECT_EQ(exposition.At("forestage_mount_in_flight_bytes{mount=\"other\"}"), 2);
  telemetry->SetStore(nullptr);
}

TEST(TelemetryTest, CountsFromManyThreadsWhileItIsScraped) {
  constexpr int kThreads = 4;
  constexpr int kEvents = 2000;
  CheckpointStoreFake store;
  store.checkpoints.push_back(
      std::make_shared<StagedCheckpointFake>("a", StagingProgress{.wanted_bytes = 1}));
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int event = 0; event < kEvents; ++event) {
        telemetry->OnExtentRead(ReadCause::kStage, 1, absl::Milliseconds(1));
        telemetry->OnDecision("native", "requested");
        telemetry->SetStore(event % 2 == 0 ? &store : nullptr);
      }
    });
  }
  for (int scrape = 0; scrape < 5; ++scrape) Scrape(*telemetry);
  for (std::thread& thread : threads) thread.join();
  telemetry->SetStore(nullptr);
  const Exposition exposition = Scrape(*telemetry);
  EXPECT_EQ(exposition.At("forestage_storage_read_bytes_total{cause=\"stage\"}"),
            kThreads * kEvents);
  EXPECT_EQ(exposition.At("forestage_extent_read_seconds_count"), kThreads * kEvents);
}

TEST(TelemetryTest, OtherPathsAreNotFound) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
  EXPECT_THAT(Get(telemetry->address(), "/").head, HasSubstr(" 404 Not Found"));
  EXPECT_THAT(Get(telemetry->address(), "/../../etc/passwd").head,
              ::testing::Not(HasSubstr(" 200 ")));
}

TEST(TelemetryTest, PortZeroTakesAFreeOneAndSaysWhich) {
  const std::unique_ptr<Telemetry> first = MakeTelemetry();
  const std::unique_ptr<Telemetry> second = MakeTelemetry("localhost:0");
  EXPECT_THAT(first->address(), StartsWith("127.0.0.1:"));
  EXPECT_NE(first->address(), "127.0.0.1:0");
  EXPECT_NE(first->address(), second->address());
}

TEST(TelemetryTest, NoneServesNothingAndStillCounts) {
  const std::unique_ptr<Telemetry> telemetry = MakeTelemetry("none");
  EXPECT_EQ(telemetry->address(), "");
  telemetry->OnConsumed(1);
  telemetry->SetSessions(1);
}

TEST(TelemetryTest, AnAddressThatOthersReachIsRefused) {
  for (const char* address : {"0.0.0.0:0", "192.0.2.1:0", "[::1]:0", "9748", "", "node7:0"}) {
    EXPECT_THAT(Telemetry::Create({.address = address, .daemon_version = "1"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("metrics address")))
        << address;
  }
}

TEST(TelemetryTest, APortInUseIsNamedWithWhatToDo) {
  const std::unique_ptr<Telemetry> first = MakeTelemetry();
  EXPECT_THAT(
      Telemetry::Create({.address = first->address(), .daemon_version = "1"}),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr(first->address()), HasSubstr("in use"), HasSubstr("another port"))));
}

TEST(TelemetryTest, ThePortIsFreeAgainAfterwards) {
  std::string address;
  {
    const std::unique_ptr<Telemetry> telemetry = MakeTelemetry();
    address = telemetry->address();
    Scrape(*telemetry);
  }
  EXPECT_OK(Telemetry::Create({.address = address, .daemon_version = "1"}));
}

TEST(MetricTableTest, NamesFollowTheConventions) {
  for (const MetricDescription& row : MetricTable()) {
    EXPECT_TRUE(absl::StartsWith(row.name, "forestage_")) << row.name;
    EXPECT_EQ(absl::EndsWith(row.name, "_total"), row.type == MetricType::kCounter) << row.name;
    EXPECT_TRUE(absl::EndsWith(row.help, ".")) << row.name;
    for (const LabelDescription& label : row.labels) {
      EXPECT_NE(label.values.empty(), label.free_values.empty()) << row.name;
    }
  }
}

TEST(MetricsPageTest, ListsEveryMetricAsTheCodeHasIt) {
  ExpectGeneratedSection(METRICS_PAGE, MetricsAsMarkdown());
}

}  // namespace
}  // namespace forestage
