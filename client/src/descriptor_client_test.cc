#include "client/src/descriptor_client.h"

#include <fcntl.h>

#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/unix_listener_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/check.h"
#include "common/descriptor_passing.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

constexpr SessionToken kToken = {1, 2, 3};

struct Answer {
  DescriptorReply reply;
  std::vector<int> descriptors;
};

// The daemon's side in a thread: answers each request until the client hangs up.
class DescriptorServer {
 public:
  using Answerer = std::function<Answer(const DescriptorRequest&, size_t descriptor_count)>;

  explicit DescriptorServer(Answerer answer)
      : listener_(ListenForTest(path(), SOCK_SEQPACKET)), thread_([this, answer] {
          const UniqueFd connection = AcceptForTest(listener_);
          while (true) {
            absl::StatusOr<DescriptorMessage> message = ReceiveDescriptorMessage(
                connection.get(), kDescriptorMessageBytesMax, absl::InfiniteFuture());
            if (!message.ok()) return;
            DescriptorRequest request;
            CHECK(message->bytes.size() == sizeof(request));
            std::memcpy(&request, message->bytes.data(), sizeof(request));
            const Answer reply = answer(request, message->descriptors.size());
            const absl::Status sent = SendDescriptorMessage(
                connection.get(),
                absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&reply.reply),
                                    sizeof(reply.reply)),
                reply.descriptors, absl::InfiniteFuture());
            if (!sent.ok()) return;
          }
        }) {}
  ~DescriptorServer() { thread_.join(); }

  std::string path() const { return directory_.File("d"); }
  absl::StatusOr<DescriptorClient> Connect() {
    return DescriptorClient::Connect(path(), kToken, absl::InfiniteFuture());
  }

 private:
  const TemporaryDirectoryForTest directory_;
  const UniqueFd listener_;
  std::thread thread_;
};

std::vector<OfferedShard> Shards(size_t count, int fd) {
  std::vector<OfferedShard> shards(count);
  for (OfferedShard& shard : shards) shard.fd = fd;
  return shards;
}

class DescriptorClientTest : public ::testing::Test {
 protected:
  const UniqueFd null_{open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

TEST_F(DescriptorClientTest, GoesOnFromWhatWasAccepted) {
  std::vector<std::pair<uint32_t, size_t>> batches;
  DescriptorServer server([&](const DescriptorRequest& request, size_t count) {
    EXPECT_EQ(request.token, kToken);
    EXPECT_EQ(request.version, kDescriptorProtocolVersion);
    EXPECT_EQ(request.descriptor_count, count);
    batches.emplace_back(request.first_shard_index, count);
    // The daemon runs short of descriptors in the first batch.
    const uint32_t accepted =
        batches.size() == 1 ? 100 : request.first_shard_index + static_cast<uint32_t>(count);
    return Answer{.reply = {.accepted_count = accepted}, .descriptors = {}};
  });
  {
    ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
    EXPECT_OK(exchange.SendShards(Shards(500, null_.get()), absl::InfiniteFuture()));
  }
  const std::vector<std::pair<uint32_t, size_t>> expected = {{0, 253}, {100, 253}, {353, 147}};
  EXPECT_EQ(batches, expected);
}

TEST_F(DescriptorClientTest, IsAnErrorWhenNothingMoreIsAccepted) {
  DescriptorServer server([](const DescriptorRequest&, size_t) {
    return Answer{.reply = {.accepted_count = 10}, .descriptors = {}};
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.SendShards(Shards(20, null_.get()), absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("10 of 20")));
}

TEST_F(DescriptorClientTest, PassesARefusalOn) {
  DescriptorServer server([](const DescriptorRequest&, size_t) {
    Answer answer;
    answer.reply.code = static_cast<uint32_t>(absl::StatusCode::kPermissionDenied);
    // Not terminated.
    std::memset(answer.reply.message, 'n', sizeof(answer.reply.message));
    return answer;
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.SendShards(Shards(1, null_.get()), absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("nnn")));
}

TEST_F(DescriptorClientTest, RefusesAcceptedCountsBeyondWhatWasSent) {
  DescriptorServer server([](const DescriptorRequest&, size_t) {
    return Answer{.reply = {.accepted_count = 2}, .descriptors = {}};
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.SendShards(Shards(1, null_.get()), absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("accepted 2")));
}

TEST_F(DescriptorClientTest, FetchesCatalogAndBoardInThisOrder) {
  const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  DescriptorServer server([&](const DescriptorRequest& request, size_t) {
    EXPECT_EQ(request.kind, DescriptorRequestKind::kDelivery);
    return Answer{.reply = {}, .descriptors = {null_.get(), zero.get()}};
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  ASSERT_OK_AND_ASSIGN(const DeliveredDescriptors delivered,
                       exchange.Fetch(absl::InfiniteFuture()));
  const auto device = [](const UniqueFd& fd) {
    struct stat stat_buffer = {};
    CHECK(fstat(fd.get(), &stat_buffer) == 0);
    return stat_buffer.st_rdev;
  };
  EXPECT_EQ(device(delivered.catalog), device(null_));
  EXPECT_EQ(device(delivered.board), device(zero));
}

TEST_F(DescriptorClientTest, RefusesADeliveryWithoutDescriptors) {
  DescriptorServer server([](const DescriptorRequest&, size_t) { return Answer{}; });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.Fetch(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("0 descriptors")));
}

TEST_F(DescriptorClientTest, EndsAtItsDeadlineWhenTheDaemonIsSilent) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("d"), SOCK_SEQPACKET);
  ASSERT_OK_AND_ASSIGN(
      DescriptorClient exchange,
      DescriptorClient::Connect(directory.File("d"), kToken, absl::InfiniteFuture()));
  EXPECT_THAT(exchange.Fetch(absl::Now() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("descriptor")));
}

TEST_F(DescriptorClientTest, SeesThatTheDaemonHungUp) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("d"), SOCK_SEQPACKET);
  ASSERT_OK_AND_ASSIGN(
      DescriptorClient exchange,
      DescriptorClient::Connect(directory.File("d"), kToken, absl::InfiniteFuture()));
  { const UniqueFd connection = AcceptForTest(listener); }
  EXPECT_THAT(exchange.Fetch(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

}  // namespace
}  // namespace forestage
