#include "client/cli/rank_load.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cli/digest_line.h"
#include "client/cli/exit_code.h"
#include "client/cli/name_escaping.h"
#include "client/cli/read_watch.h"
#include "client/cli/stall_watch.h"
#include "client/cli/termination_signals.h"
#include <sys/prctl.h>

#include "common/check.h"
#include "common/error_list.h"
#include "common/status_macros.h"
#include "common/thread_start.h"

namespace forestage {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);
// How long a daemon may take to say what it read, when all is loaded.
constexpr absl::Duration kStagingStatusTimeout = absl::Seconds(5);
// Meanwhile it is asked so often, should it go before the end; a slow one is not waited for.
constexpr absl::Duration kReadBytesInterval = absl::Milliseconds(250);
constexpr absl::Duration kReadBytesTimeout = absl::Milliseconds(50);
// How often a rank looks where its own reads stand.
constexpr absl::Duration kStallLookInterval = absl::Seconds(1);
// So many differing slices are named.
constexpr uint64_t kNamedMismatchesMax = 10;

// Touches every byte, as fast as memory gives them: GCC 12 keeps an array of sums in memory, and is
// then held up by its own stores.
uint64_t Sum(absl::Span<const std::byte> bytes) {
  const std::byte* const begin = bytes.data();
  const size_t size = bytes.size();
  uint64_t sum = 0;
  uint64_t word = 0;
  size_t done = 0;
  for (; done + sizeof(word) <= size; done += sizeof(word)) {
    std::memcpy(&word, begin + done, sizeof(word));
    sum += word;
  }
  for (; done < size; ++done) sum += static_cast<uint64_t>(begin[done]);
  return sum;
}

double MonotonicSeconds() {
  timespec now = {};
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

SessionOptions MakeSessionOptions(const GlobalOptions& global, const RankOptions& options) {
  SessionOptions session;
  session.socket_path = global.socket_path;
  session.daemon_user = global.daemon_user;
  session.use_daemon = !global.no_daemon;
  session.group_name = options.group_name;
  session.launch_nonce = options.launch_nonce;
  session.local_rank = options.rank;
  session.local_size = options.ranks;
  session.policy = options.policy;
  session.agreement = options.agreement;
  return session;
}

// Looks at a load from a thread of its own. Where none is to be had, nothing is told.
class StallTeller {
 public:
  StallTeller(const RankLoad& load, std::function<void(const RankMessage&)> report)
      : load_(load), report_(std::move(report)), thread_(StartThread([this] { Run(); })) {}
  ~StallTeller() {
    stop_.Notify();
    if (thread_.ok()) thread_->join();
  }
  StallTeller(const StallTeller&) = delete;
  StallTeller& operator=(const StallTeller&) = delete;

 private:
  void Run() {
    ReadWatch watch;
    while (!stop_.WaitForNotificationWithTimeout(kStallLookInterval)) {
      const std::optional<ReadPlace> stuck = watch.Look(load_.ReadPlaces(), absl::Now());
      if (stuck.has_value()) report_(RankStall{StallText(ReadPlaceText(*stuck))});
    }
  }

  const RankLoad& load_;
  const std::function<void(const RankMessage&)> report_;
  absl::Notification stop_;
  absl::StatusOr<std::thread> thread_;
};

}  // namespace

RankLoad::RankLoad(GlobalOptions global, RankOptions options,
                   std::function<void(const RankMessage&)> report)
    : global_(std::move(global)), options_(std::move(options)), report_(std::move(report)) {}

RankResult RankLoad::Run() {
  result_.begun_at_seconds = MonotonicSeconds();
  result_.requested = std::string(PolicyName(options_.policy));
  absl::Status status = Open();
  if (status.ok()) {
    result_.checkpoint_bytes = session_->catalog()->total_bytes();
    for (const std::string& name : plan_.uncuttable) {
      report_(RankNote{absl::StrCat(EscapeName(name),
                                    " is taken whole by every rank: its rows "
                                    "do not begin at bytes")});
    }
    // Says that it is open, too.
    ReportProgress(absl::Now());
    status = LoadAll();
    result_.verified =
        options_.verify && result_.mismatched == 0 && checked_slices_ == plan_.slices.size();
  }
  result_.ended_at_seconds = MonotonicSeconds();
  if (clock_ != nullptr) {
    result_.seconds = absl::ToDoubleSeconds(clock_->elapsed());
    result_.major_faults = clock_->major_faults();
  }
  if (!status.ok()) result_.error = std::string(status.message());
  if (session_ != nullptr) CloseSession();
  return result_;
}

absl::Status RankLoad::Open() {
  if (options_.verify) {
    ASSIGN_OR_RETURN(auto local_catalog, LocalCatalog::Read(options_.directory));
    verifier_ = std::make_unique<SliceVerifier>(std::move(local_catalog));
  }
  SessionOptions session_options = MakeSessionOptions(global_, options_);
  session_options.choose_demand = [this](const Catalog& catalog) {
    plan_ = PlanRank(catalog, options_);
    return DemandOf(plan_);
  };
  clock_ = std::make_unique<LoadClock>();
  ASSIGN_OR_RETURN(session_, Session::Open(options_.directory, session_options));
  absl::MutexLock lock(&session_mutex_);
  open_session_ = session_.get();
  return absl::OkStatus();
}

absl::Status RankLoad::LoadAll() {
  if (options_.own) {
    ASSIGN_OR_RETURN(own_, OwnMemory::Reserve(plan_.bytes, plan_.slices.size()));
  }
  // One shard that cannot be read hides no other: each is given up at its first error.
  std::map<size_t, absl::Status> failed;
  for (const PlannedSlice& planned : plan_.slices) {
    if (!failed.empty() && failed.count(ShardOf(planned)) > 0) continue;
    const absl::StatusOr<LoadedBytes> loaded =
        options_.own ? ReadIntoOwnMemory(planned) : ReadAndTouch(planned);
    if (!loaded.ok()) {
      failed.emplace(ShardOf(planned), loaded.status());
      continue;
    }
    // An empty slice is no tensor to begin with.
    if (!result_.first_tensor_seconds.has_value() && !loaded->bytes.empty()) {
      result_.first_tensor_seconds = absl::ToDoubleSeconds(clock_->elapsed());
    }
    if (absl::Status checked = CheckAndTell(planned, loaded->bytes); !checked.ok()) {
      failed.emplace(ShardOf(planned), std::move(checked));
      continue;
    }
    session_->MarkConsumed(planned.tensor_index);
  }
  std::vector<absl::Status> errors;
  for (const auto& [shard, error] : failed) errors.push_back(error);
  return JoinErrors(errors);
}

std::vector<ReadPlace> RankLoad::ReadPlaces() const {
  absl::MutexLock lock(&session_mutex_);
  if (open_session_ == nullptr) return {};
  std::vector<ReadPlace> places = open_session_->ReadPlaces();
  const size_t touched = touched_.load(std::memory_order_relaxed);
  if (touched > 0) {
    const std::shared_ptr<const Catalog> catalog = open_session_->catalog();
    const TensorInfo tensor = catalog->tensor(plan_.slices[touched - 1].tensor_index);
    places.push_back({.file = absl::StrCat(options_.directory, "/", tensor.shard),
                      .offset = tensor.begin,
                      .waits_for_daemon = false});
  }
  return places;
}

size_t RankLoad::ShardOf(const PlannedSlice& planned) const {
  return session_->catalog()->tensor(planned.tensor_index).shard_index;
}

absl::Status RankLoad::CheckAndTell(const PlannedSlice& planned,
                                    absl::Span<const std::byte> bytes) {
  const bool check = options_.digests || verifier_ != nullptr;
  const absl::Time now = absl::Now();
  const bool progress = now >= next_progress_ || result_.bytes >= plan_.bytes;
  const bool read_bytes = now >= next_read_bytes_;
  // Even to stop the clock takes longer than to load a small tensor.
  if (!check && !progress && !read_bytes) return absl::OkStatus();
  clock_->Pause();
  const absl::Status checked = check ? Check(planned, bytes) : absl::OkStatus();
  if (progress) ReportProgress(now);
  if (read_bytes) HearReadBytes(kReadBytesTimeout);
  clock_->Resume();
  return checked;
}

absl::StatusOr<RankLoad::LoadedBytes> RankLoad::ReadAndTouch(const PlannedSlice& planned) {
  ASSIGN_OR_RETURN(const Slice slice, session_->GetSlice(planned.tensor_index, planned.ranges));
  LoadedBytes loaded;
  if (slice.contiguous()) {
    ASSIGN_OR_RETURN(loaded.view, slice.View());
    loaded.bytes = loaded.view->bytes();
  } else {
    buffer_.resize(slice.bytes());
    RETURN_IF_ERROR(slice.CopyTo(absl::MakeSpan(buffer_)));
    loaded.bytes = buffer_;
  }
  touched_.store(static_cast<size_t>(&planned - plan_.slices.data()) + 1,
                 std::memory_order_relaxed);
  result_.sum += Sum(loaded.bytes);
  touched_.store(0, std::memory_order_relaxed);
  result_.bytes += loaded.bytes.size();
  return loaded;
}

absl::StatusOr<RankLoad::LoadedBytes> RankLoad::ReadIntoOwnMemory(const PlannedSlice& planned) {
  ASSIGN_OR_RETURN(const Slice slice, session_->GetSlice(planned.tensor_index, planned.ranges));
  const absl::Span<std::byte> own = own_.Take(slice.bytes());
  RETURN_IF_ERROR(slice.CopyTo(own));
  result_.bytes += own.size();
  LoadedBytes loaded;
  loaded.bytes = own;
  return loaded;
}

absl::Status RankLoad::Check(const PlannedSlice& planned, absl::Span<const std::byte> bytes) {
  const std::shared_ptr<const Catalog> catalog = session_->catalog();
  const TensorInfo tensor = catalog->tensor(planned.tensor_index);
  if (options_.digests) report_(RankDigest{DigestLine(options_.rank, tensor.name, bytes)});
  if (verifier_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<std::string> difference,
                   verifier_->FindDifference(tensor, planned.ranges, bytes));
  ++checked_slices_;
  if (!difference.has_value()) return absl::OkStatus();
  if (++result_.mismatched <= kNamedMismatchesMax)
    report_(RankNote{absl::StrCat(EscapeName(tensor.name), ": ", *difference)});
  return absl::OkStatus();
}

void RankLoad::ReportProgress(absl::Time now) {
  next_progress_ = now + kProgressInterval;
  report_(RankProgress{.done_bytes = result_.bytes, .total_bytes = plan_.bytes});
}

void RankLoad::CloseSession() {
  const Decision decision = session_->decision();
  result_.effective = std::string(PolicyName(decision.effective));
  result_.activated = decision.activated;
  result_.reason = decision.reason;
  if (decision.effective != Policy::kNative) HearReadBytes(kStagingStatusTimeout);
  session_->Close();
}

void RankLoad::HearReadBytes(absl::Duration timeout) {
  const absl::StatusOr<StagingStatus> staging = session_->GetStagingStatus(absl::Now() + timeout);
  if (staging.ok()) result_.daemon_read_bytes = staging->read_bytes;
  next_read_bytes_ = absl::Now() + kReadBytesInterval;
}

ExitCode RunRank(const GlobalOptions& global, const RankOptions& options) {
  // One that waits for storage that never answers can only give up its session when it is told to
  // end.
  BlockWatchedSignals();
  const TerminationSignals signals(absl::ZeroDuration());
  // A parent that is killed leaves no rank behind; one that went before this line is seen at the
  // first message, by a broken pipe.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) std::perror("forestage rank: prctl");
  absl::Mutex pipe_mutex;
  const auto write_message = [&pipe_mutex](const RankMessage& message) {
    absl::MutexLock lock(&pipe_mutex);
    const std::string line = EncodeRankMessage(message);
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = write(kRankMessageDescriptor, line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      // Nobody listens any more.
      if (written < 0) _exit(static_cast<int>(ExitCode::kFailed));
      done += static_cast<size_t>(written);
    }
  };
  RankLoad load(global, options, write_message);
  const StallTeller teller(load, write_message);
  if (options.together) {
    write_message(RankReady());
    char none;
    while (read(kRankGateDescriptor, &none, 1) < 0 && errno == EINTR) {
    }
  }
  const RankResult result = load.Run();
  write_message(result);
  return result.error.empty() ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace forestage
