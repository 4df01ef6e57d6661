// The daemon in this process, with real sockets, real files and bare clients.
#include "daemon/server.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "common/descriptor_passing.h"
#include "common/socket_path.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "daemon/limits.h"
#include "daemon/service/raw_session_client.h"
#include "daemon/service/raw_status_client.h"
#include "daemon/storage/files_for_test.h"

extern char** environ;

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A shard of `tensors` tensors of 64 KiB each.
void WriteShard(const std::string& path, const std::string& prefix, size_t tensors) {
  constexpr size_t kTensorBytes = 64 * 1024;
  std::vector<std::string> entries;
  for (size_t i = 0; i < tensors; ++i) {
    entries.push_back(absl::StrCat("\"", prefix, ".", i, "\":{\"dtype\":\"U8\",\"shape\":[",
                                   kTensorBytes, "],\"data_offsets\":[", i * kTensorBytes, ",",
                                   (i + 1) * kTensorBytes, "]}"));
  }
  const std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  const uint64_t header_bytes = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file << header << std::string(tensors * kTensorBytes, 'x');
  ASSERT_TRUE(file.good());
}

// A rank in a process of its own.
class RankProcess {
 public:
  RankProcess(const std::string& socket, const std::string& group, uint32_t rank, uint32_t size,
              const std::vector<std::string>& files) {
    int input[2] = {-1, -1};
    int output[2] = {-1, -1};
    EXPECT_EQ(pipe2(input, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    std::vector<std::string> arguments = {RAW_RANK_PROGRAM, socket, group, absl::StrCat(rank),
                                          absl::StrCat(size)};
    arguments.insert(arguments.end(), files.begin(), files.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, RAW_RANK_PROGRAM, &actions, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(output[1]);
    input_.Reset(input[1]);
    output_ = fdopen(output[0], "r");
  }
  ~RankProcess() {
    Kill();
    if (output_ != nullptr) fclose(output_);
  }
  pid_t pid() const { return pid_; }
  std::string ReadLine() {
    char line[256] = {};
    if (fgets(line, sizeof(line), output_) == nullptr) return "";
    line[strcspn(line, "\n")] = '\0';
    return line;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
  FILE* output_ = nullptr;
};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.socket_path = directory_.File("run/forestage/d.sock");
    config_.metrics_address = "none";
    config_.extent_bytes = 64 * 1024;
    for (const char* const name :
         {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
      files_.push_back(directory_.File(name));
      WriteShard(files_.back(), absl::StrCat("layer", files_.size()), 4);
    }
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(config_);
    ASSERT_OK(server);
    server_ = std::move(*server);
    ASSERT_OK(server_->Start());
  }
  void TearDown() override {
    if (server_ != nullptr) {
      EXPECT_OK(server_->Drain(kPatience));
    }
  }

  v1::OpenRequest Request(uint32_t rank, uint32_t size) const {
    return RawSessionClient::MakeOpenRequest("job", rank, size, files_);
  }
  v1::OpenRequest StrictRequest(uint32_t rank, uint32_t size, uint32_t timeout_ms) const {
    v1::OpenRequest request = Request(rank, size);
    request.set_agreement(v1::AGREEMENT_STRICT);
    request.set_agreement_timeout_ms(timeout_ms);
    return request;
  }
  v1::GetStatusResponse GetStatus() const {
    absl::StatusOr<v1::GetStatusResponse> status =
        RawStatusClient(AdminSocketPath(config_.socket_path)).GetStatus();
    EXPECT_OK(status);
    return status.ok() ? *std::move(status) : v1::GetStatusResponse();
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
  Config config_;
  std::vector<std::string> files_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, EagerRankGetsCatalogBoardAndResidentBytes) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK_AND_ASSIGN(const v1::SessionOpened opened, client.Open(Request(0, 2)));
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, client.ConnectDescriptors());
  ASSERT_OK(client.SendShards(socket.get(), files_, /*batch_max=*/1));
  ASSERT_OK_AND_ASSIGN(const RawSessionClient::Delivery delivery, client.Fetch(socket.get()));
  ASSERT_OK_AND_ASSIGN(const v1::SessionEvent ready, client.WaitFor(v1::SessionEvent::kCheckpoint));
  ASSERT_OK_AND_ASSIGN(const v1::SessionEvent decided, client.WaitFor(v1::SessionEvent::kDecision));

  EXPECT_EQ(delivery.catalog->tensor_count(), 8u);
  EXPECT_EQ(ready.checkpoint().tensor_count(), 8u);
  EXPECT_EQ(ready.checkpoint().extent_count(), delivery.board->extent_count());
  EXPECT_EQ(delivery.board->generation(), opened.generation());
  EXPECT_EQ(decided.decision().requested(), v1::POLICY_AUTO);
  EXPECT_EQ(decided.decision().effective(), v1::POLICY_RANK_STRIPED_READ_AHEAD);
  EXPECT_TRUE(decided.decision().activated());
  for (uint64_t i = 0; i < delivery.board->extent_count(); ++i) {
    EXPECT_EQ(delivery.board->WaitFor(i, absl::Now() + kPatience), ExtentState::kResident);
  }
  // Told without being asked, at completion.
  ASSERT_OK_AND_ASSIGN(const v1::SessionEvent progress,
                       client.WaitFor(v1::SessionEvent::kProgress));
  EXPECT_GT(progress.progress().wanted_bytes(), 0u);
  EXPECT_OK(client.Close());
}

TEST_F(ServerTest, StrictGroupGetsItsDecisionWhenAllAreThere) {
  RawSessionClient first(config_.socket_path);
  ASSERT_OK(first.Open(StrictRequest(0, 2, 0)));
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, first.ConnectDescriptors());
  ASSERT_OK(first.SendShards(socket.get(), files_, 100));
  ASSERT_OK(first.WaitFor(v1::SessionEvent::kCheckpoint));
  const v1::GetStatusResponse before = GetStatus();
  ASSERT_EQ(before.checkpoints_size(), 1);
  ASSERT_EQ(before.checkpoints(0).sessions_size(), 1);
  EXPECT_FALSE(before.checkpoints(0).sessions(0).has_decision());
  EXPECT_EQ(before.checkpoints(0).sessions(0).pid(), static_cast<uint32_t>(getpid()));

  RawSessionClient second(config_.socket_path);
  ASSERT_OK_AND_ASSIGN(const v1::Decision last,
                       second.OpenAndPrepare(StrictRequest(1, 2, 0), files_));
  EXPECT_EQ(last.effective(), v1::POLICY_RANK_STRIPED_READ_AHEAD);
  ASSERT_OK_AND_ASSIGN(const v1::SessionEvent event, first.WaitFor(v1::SessionEvent::kDecision));
  EXPECT_EQ(event.decision().effective(), v1::POLICY_RANK_STRIPED_READ_AHEAD);
}

TEST_F(ServerTest, StrictGroupThatStaysIncompleteGetsNativeAndTheMissingRanks) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK_AND_ASSIGN(const v1::Decision decision,
                       client.OpenAndPrepare(StrictRequest(0, 3, 50), files_));
  EXPECT_EQ(decision.effective(), v1::POLICY_NATIVE);
  EXPECT_THAT(decision.reason(), AllOf(HasSubstr("rank 1"), HasSubstr("rank 2")));
}

TEST_F(ServerTest, WrongTokenIsRefused) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.Open(Request(0, 1)));
  SessionToken wrong = client.token();
  wrong[3] ^= 0x10;
  client.set_token(wrong);
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, client.ConnectDescriptors());
  EXPECT_THAT(client.SendShards(socket.get(), files_, 100),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("token")));
}

TEST_F(ServerTest, TokenOfAnotherProcessIsRefused) {
  RankProcess other(config_.socket_path, "other", 0, 1, files_);
  const std::string token = absl::HexStringToBytes(other.ReadLine());
  ASSERT_EQ(token.size(), kSessionTokenBytes);
  ASSERT_EQ(other.ReadLine(), "POLICY_RANK_STRIPED_READ_AHEAD");
  RawSessionClient thief(config_.socket_path);
  SessionToken stolen = {};
  std::copy(token.begin(), token.end(), stolen.begin());
  thief.set_token(stolen);
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, thief.ConnectDescriptors());
  EXPECT_THAT(thief.Fetch(socket.get()).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("token")));
}

TEST_F(ServerTest, GarbageOnTheDescriptorSocketHarmsNobody) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.Open(Request(0, 1)));
  const std::vector<std::string> garbage = {"x", std::string(sizeof(DescriptorRequest), '\xff'),
                                            std::string(sizeof(DescriptorRequest), '\0'),
                                            std::string(kDescriptorMessageBytesMax + 100, 'y')};
  for (const std::string& bytes : garbage) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd socket, client.ConnectDescriptors());
    const UniqueFd file = OpenForTest(files_[0]);
    ASSERT_OK(SendDescriptorMessage(
        socket.get(),
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()),
        {file.get()}, absl::Now() + kPatience));
    ASSERT_OK_AND_ASSIGN(const DescriptorMessage reply,
                         ReceiveDescriptorMessage(socket.get(), kDescriptorMessageBytesMax,
                                                  absl::Now() + kPatience));
    DescriptorReply parsed;
    ASSERT_EQ(reply.bytes.size(), sizeof(parsed));
    std::memcpy(&parsed, reply.bytes.data(), sizeof(parsed));
    EXPECT_EQ(parsed.code, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(
        ReceiveDescriptorMessage(socket.get(), kDescriptorMessageBytesMax, absl::Now() + kPatience),
        Not(IsOk()))
        << "the connection is closed";
  }
  // More descriptors than the request says, and shards that the open request does not have.
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, client.ConnectDescriptors());
  EXPECT_THAT(client.SendShards(socket.get(), {files_[0], files_[1], files_[0]}, 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 2")));
  // The session is as it was.
  ASSERT_OK_AND_ASSIGN(const UniqueFd good, client.ConnectDescriptors());
  ASSERT_OK(client.SendShards(good.get(), files_, 100));
  EXPECT_OK(client.WaitFor(v1::SessionEvent::kDecision));
}

TEST_F(ServerTest, KilledRankFreesItsSeat) {
  RankProcess rank(config_.socket_path, "job", 0, 2, files_);
  ASSERT_EQ(rank.ReadLine().size(), 2 * kSessionTokenBytes);
  ASSERT_EQ(rank.ReadLine(), "POLICY_RANK_STRIPED_READ_AHEAD");
  {
    RawSessionClient second(config_.socket_path);
    EXPECT_THAT(
        second.Open(Request(0, 2)).status(),
        StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(absl::StrCat("pid ", rank.pid()))));
  }
  rank.Kill();
  RawSessionClient again(config_.socket_path);
  ASSERT_OK_AND_ASSIGN(const v1::Decision decision, again.OpenAndPrepare(Request(0, 2), files_));
  EXPECT_EQ(decision.effective(), v1::POLICY_RANK_STRIPED_READ_AHEAD);
}

TEST_F(ServerTest, DuplicateRankAndOtherSizeAreRefusedWithTheReason) {
  RawSessionClient first(config_.socket_path);
  ASSERT_OK(first.Open(Request(0, 2)));
  RawSessionClient duplicate(config_.socket_path);
  EXPECT_THAT(
      duplicate.Open(Request(0, 2)).status(),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(absl::StrCat("pid ", getpid()))));
  RawSessionClient mismatched(config_.socket_path);
  EXPECT_THAT(mismatched.Open(Request(1, 3)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local size 3")));
  RawSessionClient beyond(config_.socket_path);
  EXPECT_THAT(beyond.Open(Request(2, 2)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_rank 2")));
}

TEST_F(ServerTest, DamagedShardsEndTheSessionWithEveryName) {
  for (const std::string& file : files_) {
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  }
  RawSessionClient client(config_.socket_path);
  EXPECT_THAT(
      client.OpenAndPrepare(Request(0, 1), files_).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("model-00001-of-00002"), HasSubstr("model-00002-of-00002"))));
}

TEST_F(ServerTest, ProtocolErrorsEndTheStreamOnly) {
  {
    RawSessionClient client(config_.socket_path);
    v1::SessionRequest request;
    request.mutable_progress();
    client.Send(request);
    EXPECT_THAT(client.WaitForEnd(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("open")));
  }
  {
    RawSessionClient client(config_.socket_path);
    EXPECT_THAT(client.Close(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("open")));
  }
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.Open(Request(0, 1)));
  v1::SessionRequest second;
  *second.mutable_open() = Request(0, 1);
  client.Send(second);
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("second")));
  EXPECT_THAT(GetStatus().checkpoints(), IsEmpty());
}

TEST_F(ServerTest, LargestRequestsPass) {
  v1::OpenRequest many = Request(0, 1);
  many.mutable_group()->set_name("many");
  // More than the 4 MiB that gRPC takes by default.
  for (size_t i = 2; i < kShardsPerSessionMax; ++i) {
    v1::Shard* const shard = many.add_shards();
    shard->set_name(absl::StrCat(std::string(240, 'n'), i));
    shard->set_size_bytes(1 << 30);
    shard->set_mtime_ns(1'700'000'000'000'000'000);
  }
  ASSERT_GT(many.ByteSizeLong(), size_t{4} * 1024 * 1024);
  RawSessionClient wide(config_.socket_path);
  EXPECT_OK(wide.Open(many));

  v1::OpenRequest request = Request(0, 1);
  request.set_demand_follows(true);
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.OpenAndPrepare(request, files_));
  v1::SessionRequest demand;
  for (uint64_t i = 0; i < 100'000; ++i) {
    v1::Demand::Item* const item = demand.mutable_demand()->add_items();
    item->set_tensor_index(7);
    item->set_begin(i % 1000);
    item->set_end(1000 + i % 1000);
  }
  client.Send(demand);
  v1::SessionRequest ask;
  ask.mutable_progress();
  client.Send(ask);
  ASSERT_OK_AND_ASSIGN(const v1::SessionEvent event, client.WaitFor(v1::SessionEvent::kProgress));
  EXPECT_GT(event.progress().wanted_bytes(), 0u);
}

TEST_F(ServerTest, StatusAndCatalogPagesDescribeWhatIsStaged) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.OpenAndPrepare(Request(0, 1), files_));
  const v1::GetStatusResponse status = GetStatus();
  ASSERT_EQ(status.checkpoints_size(), 1);
  EXPECT_EQ(status.checkpoints(0).path(), directory_.path());
  EXPECT_EQ(status.checkpoints(0).tensor_count(), 8u);
  EXPECT_FALSE(status.draining());
  EXPECT_EQ(status.checkpoints(0).sessions(0).decision().effective(),
            v1::POLICY_RANK_STRIPED_READ_AHEAD);

  RawStatusClient tool(AdminSocketPath(config_.socket_path));
  v1::ListTensorsRequest request;
  request.set_signature(status.checkpoints(0).signature());
  request.set_prefix("layer2.");
  request.set_page_size(3);
  std::vector<std::string> names;
  for (int page = 0; page < 2; ++page) {
    ASSERT_OK_AND_ASSIGN(const v1::ListTensorsResponse response, tool.ListTensors(request));
    for (const v1::TensorDescription& tensor : response.tensors()) names.push_back(tensor.name());
    EXPECT_EQ(response.next_page_token().empty(), page == 1);
    request.set_page_token(response.next_page_token());
  }
  EXPECT_THAT(names, ElementsAre("layer2.0", "layer2.1", "layer2.2", "layer2.3"));
  for (const char* const token : {"x", "1:2:3", "0:0"}) {
    request.set_page_token(token);
    EXPECT_THAT(tool.ListTensors(request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("page_token")))
        << token;
  }
  request.set_signature("unknown");
  EXPECT_THAT(tool.ListTensors(request),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("signature")));
}

TEST_F(ServerTest, RanksSocketTellsNothingOfWhatTheDaemonHolds) {
  RawStatusClient rank(config_.socket_path);
  const auto refused = StatusIs(absl::StatusCode::kPermissionDenied,
                                HasSubstr(AdminSocketPath(config_.socket_path)));
  EXPECT_THAT(rank.GetStatus(), refused);
  EXPECT_THAT(rank.ListTensors({}), refused);
}

TEST_F(ServerTest, AdministratorsSocketOpensNoSession) {
  RawSessionClient client(AdminSocketPath(config_.socket_path));
  EXPECT_THAT(client.Open(Request(0, 1)),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("")));
}

TEST_F(ServerTest, SocketsHaveTheModesOfThoseTheyAreFor) {
  const auto mode_of = [](const std::string& path) {
    struct stat attributes = {};
    EXPECT_EQ(stat(path.c_str(), &attributes), 0) << path;
    return attributes.st_mode & 07777u;
  };
  EXPECT_EQ(mode_of(config_.socket_path), 0660u);
  EXPECT_EQ(mode_of(DescriptorSocketPath(config_.socket_path)), 0660u);
  EXPECT_EQ(mode_of(AdminSocketPath(config_.socket_path)), 0600u);
}

TEST_F(ServerTest, GroupThatDoesNotExistIsNamedAtTheStart) {
  Config config = config_;
  config.socket_path = directory_.File("other.sock");
  config.socket_group = "no-such-group-here";
  EXPECT_THAT(Server::Create(config).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-group-here")));
}

TEST_F(ServerTest, HealthAndReflectionServeTools) {
  RawStatusClient tool(config_.socket_path);
  ASSERT_OK_AND_ASSIGN(const bool serving, tool.IsServing());
  EXPECT_TRUE(serving);
  ASSERT_OK_AND_ASSIGN(const std::string services, tool.ReflectedServices());
  EXPECT_THAT(services,
              AllOf(HasSubstr("forestage.v1.SessionService"),
                    HasSubstr("forestage.v1.StatusService"), HasSubstr("grpc.health.v1.Health")));
}

TEST_F(ServerTest, DrainTellsSessionsAndClosesBoards) {
  RawSessionClient client(config_.socket_path);
  ASSERT_OK(client.Open(Request(0, 1)));
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, client.ConnectDescriptors());
  ASSERT_OK(client.SendShards(socket.get(), files_, 100));
  ASSERT_OK_AND_ASSIGN(const RawSessionClient::Delivery delivery, client.Fetch(socket.get()));
  RawSessionClient unprepared(config_.socket_path);
  v1::OpenRequest other = Request(0, 1);
  other.mutable_group()->set_name("other");
  ASSERT_OK(unprepared.Open(other));

  EXPECT_OK(server_->Drain(kPatience));
  EXPECT_OK(client.WaitFor(v1::SessionEvent::kDraining));
  EXPECT_THAT(client.WaitForEnd(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain")));
  EXPECT_OK(unprepared.WaitFor(v1::SessionEvent::kDraining));
  EXPECT_TRUE(delivery.board->daemon_gone());
  EXPECT_FALSE(std::filesystem::exists(config_.socket_path));
  EXPECT_FALSE(std::filesystem::exists(config_.socket_path + ".descriptors"));
  EXPECT_FALSE(std::filesystem::exists(config_.socket_path + ".admin"));
  EXPECT_FALSE(std::filesystem::exists(config_.socket_path + ".lock"));
}

TEST_F(ServerTest, SecondDaemonOnThePathIsRefused) {
  EXPECT_THAT(Server::Create(config_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("another forestaged"), HasSubstr(absl::StrCat(getpid())))));
  RawSessionClient client(config_.socket_path);
  EXPECT_OK(client.Open(Request(0, 1))) << "the first one goes on";
}

TEST_F(ServerTest, StaleSocketIsReplacedAndAFileIsNot) {
  ASSERT_OK(server_->Drain(kPatience));
  server_.reset();
  // What a killed daemon leaves: a socket file nobody listens on, and a lock file nobody holds.
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, config_.socket_path.data(), config_.socket_path.size());
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(dead.get(), 1), 0);
  }
  std::ofstream(config_.socket_path + ".lock") << "1\n";
  {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Server> server, Server::Create(config_));
    ASSERT_OK(server->Start());
    struct stat attributes = {};
    ASSERT_EQ(stat(config_.socket_path.c_str(), &attributes), 0);
    EXPECT_EQ(attributes.st_mode & 0777u, 0660u);
    RawSessionClient client(config_.socket_path);
    EXPECT_OK(client.OpenAndPrepare(Request(0, 1), files_));
  }
  std::ofstream(config_.socket_path) << "precious";
  EXPECT_THAT(Server::Create(config_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no socket")));
  EXPECT_EQ(std::filesystem::file_size(config_.socket_path), 8u);
}

}  // namespace
}  // namespace forestage
