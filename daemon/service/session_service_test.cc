// Streams of clients that break the rules, over real gRPC connections.
#include "daemon/service/session_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include "common/status_matchers.h"
#include "daemon/service/peer_table.h"
#include "daemon/session/checkpoint_store_fake.h"
#include "daemon/session/exit_watch.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr size_t kStreamsMax = 3;
// Answers to them wait for nobody: the newest stands for all.
constexpr int kProgressRequests = 20'000;

class SessionServiceTest : public ::testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionEvent>;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };

  SessionServiceTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    int ends[2] = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    EXPECT_OK(peers_.Add(ends[0], *PeerIdentityOf(ends[0])));
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    stub_ = v1::SessionService::NewStub(grpc::CreateInsecureChannelFromFd("test", ends[1]));
  }
  ~SessionServiceTest() override {
    registry_.EndAll();
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  std::unique_ptr<Call> Start() {
    auto call = std::make_unique<Call>();
    call->stream = stub_->OpenSession(&call->context);
    return call;
  }
  std::unique_ptr<Call> Open(const std::string& group) {
    std::unique_ptr<Call> call = Start();
    v1::SessionRequest request;
    request.mutable_open()->mutable_group()->set_name(group);
    request.mutable_open()->mutable_group()->set_local_size(1);
    v1::Shard* const shard = request.mutable_open()->add_shards();
    shard->set_name("model.safetensors");
    shard->set_size_bytes(4096);
    // False where the stream is refused before it is read.
    (void)call->stream->Write(request);
    return call;
  }
  bool WaitForStreams(size_t count) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (service_.stream_count() != count && absl::Now() < deadline) std::this_thread::yield();
    return service_.stream_count() == count;
  }
  // Sweeps as the daemon does, until so many streams are left.
  bool SweepUntil(size_t count) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (service_.stream_count() != count && absl::Now() < deadline) service_.Sweep();
    return service_.stream_count() == count;
  }

  CheckpointStoreFake store_;
  std::unique_ptr<ExitWatch> exit_watch_ = *ExitWatch::Create();
  SessionRegistry registry_{{.now = [] { return absl::Now(); }}, store_, *exit_watch_, nullptr};
  PeerTable peers_{{.connections_max = 9, .connections_per_user_max = 9}};
  SessionService service_{{.generation = 1,
                           .daemon_version = "test",
                           .on_open_refused = nullptr,
                           .streams_per_user_max = kStreamsMax,
                           .open_timeout = absl::ZeroDuration(),
                           .end_timeout = absl::ZeroDuration()},
                          registry_,
                          peers_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
};

TEST_F(SessionServiceTest, StreamWhoseOpenDoesNotComeEnds) {
  const std::unique_ptr<Call> silent = Start();
  ASSERT_TRUE(WaitForStreams(1));
  ASSERT_TRUE(SweepUntil(0));
  const grpc::Status status = silent->stream->Finish();
  EXPECT_THAT(status.error_code(),
              ::testing::AnyOf(grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED));
}

TEST_F(SessionServiceTest, StreamsOfOneUserAreLimited) {
  std::vector<std::unique_ptr<Call>> calls;
  v1::SessionEvent event;
  for (size_t i = 0; i < kStreamsMax; ++i) {
    calls.push_back(Open(std::to_string(i)));
    ASSERT_TRUE(calls.back()->stream->Read(&event));
  }
  const std::unique_ptr<Call> refused = Open("one more");
  EXPECT_FALSE(refused->stream->Read(&event));
  const grpc::Status status = refused->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("streams"));
  // Opened ones are not swept.
  service_.Sweep();
  EXPECT_EQ(registry_.Snapshot().size(), kStreamsMax);
  calls.pop_back();
  ASSERT_TRUE(SweepUntil(kStreamsMax - 1));
  calls.push_back(Open("again"));
  EXPECT_TRUE(calls.back()->stream->Read(&event));
}

TEST_F(SessionServiceTest, ClientThatDoesNotReadKeepsItsSessionAndNothingAfterIt) {
  const std::unique_ptr<Call> deaf = Open("deaf");
  v1::SessionRequest request;
  request.mutable_progress();
  for (int i = 0; i < kProgressRequests; ++i) {
    if (!deaf->stream->Write(request)) break;
  }
  service_.Sweep();
  ASSERT_EQ(registry_.Snapshot().size(), 1u) << "it may only be stopped";
  registry_.EndAll();
  ASSERT_TRUE(SweepUntil(0));
}

}  // namespace
}  // namespace forestage
