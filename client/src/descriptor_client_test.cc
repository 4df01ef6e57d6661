#include "client/src/descriptor_client.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
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
  // Answers with a BorrowReply.
  bool lends = false;
  std::array<uint8_t, 32> lent = {};
};

DescriptorReply MakeRefusal(const char* message) {
  DescriptorReply reply;
  reply.code = static_cast<uint32_t>(absl::StatusCode::kInvalidArgument);
  std::strncpy(reply.message, message, sizeof(reply.message) - 1);
  return reply;
}

dev_t DeviceOf(const UniqueFd& fd) {
  struct stat stat_buffer = {};
  CHECK(fstat(fd.get(), &stat_buffer) == 0);
  return stat_buffer.st_rdev;
}

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
            const BorrowReply whole = {.reply = reply.reply, .lent = reply.lent};
            const size_t bytes = reply.lends ? sizeof(BorrowReply) : sizeof(DescriptorReply);
            const absl::Status sent = SendDescriptorMessage(
                connection.get(),
                absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&whole), bytes),
                reply.descriptors, absl::InfiniteFuture());
            if (!sent.ok()) return;
          }
        }) {}
  ~DescriptorServer() { thread_.join(); }

  std::string path() const { return directory_.File("d"); }
  absl::StatusOr<DescriptorClient> Connect() {
    return DescriptorClient::Connect({.path = path()}, kToken, absl::InfiniteFuture());
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
  EXPECT_EQ(DeviceOf(delivered.catalog), DeviceOf(null_));
  EXPECT_EQ(DeviceOf(delivered.board), DeviceOf(zero));
}

TEST_F(DescriptorClientTest, RefusesADeliveryWithoutDescriptors) {
  DescriptorServer server([](const DescriptorRequest&, size_t) { return Answer{}; });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.Fetch(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("0 descriptors")));
}

TEST_F(DescriptorClientTest, BorrowsAndKnowsOfWhichShards) {
  const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  std::vector<std::pair<uint32_t, size_t>> batches;
  DescriptorServer server([&](const DescriptorRequest& request, size_t count) {
    EXPECT_EQ(request.kind, DescriptorRequestKind::kBorrow);
    batches.emplace_back(request.first_shard_index, count);
    Answer answer;
    if (request.first_shard_index == 0) {
      answer.lent = {0, 0b10};
      answer.lent[252 / 8] = 1 << 252 % 8;
      answer.descriptors = {null_.get(), zero.get()};
    } else {
      // One less than was said: this process could take no more.
      answer.lent = {0b11};
      answer.descriptors = {zero.get()};
    }
    answer.lends = true;
    return answer;
  });
  {
    ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
    ASSERT_OK_AND_ASSIGN(const std::vector<UniqueFd> lent,
                         exchange.Borrow(Shards(300, null_.get()), absl::InfiniteFuture()));
    ASSERT_EQ(lent.size(), 300u);
    for (size_t i = 0; i < lent.size(); ++i) {
      EXPECT_EQ(lent[i].valid(), i == 9 || i == 252 || i == 253) << i;
    }
    EXPECT_EQ(DeviceOf(lent[9]), DeviceOf(null_));
    EXPECT_EQ(DeviceOf(lent[252]), DeviceOf(zero));
    EXPECT_EQ(DeviceOf(lent[253]), DeviceOf(zero));
  }
  const std::vector<std::pair<uint32_t, size_t>> expected = {{0, 253}, {253, 47}};
  EXPECT_EQ(batches, expected);
}

TEST_F(DescriptorClientTest, SaysWhenTheDaemonDoesNotLend) {
  DescriptorServer server([](const DescriptorRequest&, size_t) {
    return Answer{.reply = MakeRefusal("request kind 3 is unknown"), .descriptors = {}};
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  EXPECT_THAT(exchange.Borrow(Shards(2, null_.get()), absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kind 3")));
}

TEST_F(DescriptorClientTest, MoreDescriptorsThanWereLentAreNotTaken) {
  DescriptorServer server([&](const DescriptorRequest&, size_t) {
    Answer answer{.reply = {}, .descriptors = {null_.get(), null_.get()}};
    // Of a shard that was not asked for, too.
    answer.lent = {0b10, 0xff};
    answer.lends = true;
    return answer;
  });
  ASSERT_OK_AND_ASSIGN(DescriptorClient exchange, server.Connect());
  ASSERT_OK_AND_ASSIGN(const std::vector<UniqueFd> lent,
                       exchange.Borrow(Shards(2, null_.get()), absl::InfiniteFuture()));
  ASSERT_EQ(lent.size(), 2u);
  EXPECT_FALSE(lent[0].valid());
  EXPECT_TRUE(lent[1].valid());
}

// A daemon that is stopped says nothing, and keeps its sockets open.
TEST_F(DescriptorClientTest, LooksWhetherADaemonThatIsSilentLives) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("d"), SOCK_SEQPACKET);
  int looks = 0;
  ASSERT_OK_AND_ASSIGN(
      DescriptorClient exchange,
      DescriptorClient::Connect({.path = directory.File("d")}, kToken, absl::InfiniteFuture(),
                                [&looks]() -> absl::Status {
                                  if (++looks < 2) return absl::OkStatus();
                                  return absl::UnavailableError("it stands still");
                                }));
  EXPECT_THAT(exchange.SendShards(Shards(1, null_.get()), absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stands still")));
  EXPECT_EQ(looks, 2);
}

TEST_F(DescriptorClientTest, EndsAtItsDeadlineWhenTheDaemonIsSilent) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("d"), SOCK_SEQPACKET);
  ASSERT_OK_AND_ASSIGN(
      DescriptorClient exchange,
      DescriptorClient::Connect({.path = directory.File("d")}, kToken, absl::InfiniteFuture()));
  EXPECT_THAT(exchange.Fetch(absl::Now() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("descriptor")));
}

TEST_F(DescriptorClientTest, SeesThatTheDaemonHungUp) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("d"), SOCK_SEQPACKET);
  ASSERT_OK_AND_ASSIGN(
      DescriptorClient exchange,
      DescriptorClient::Connect({.path = directory.File("d")}, kToken, absl::InfiniteFuture()));
  { const UniqueFd connection = AcceptForTest(listener); }
  EXPECT_THAT(exchange.Fetch(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

// By itself, whoever listens on the other socket: somebody may have replaced this one alone.
TEST_F(DescriptorClientTest, SendsNothingToAStrangerWhoListens) {
  if (getuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  const TemporaryDirectoryForTest directory;
  const UniqueFd stranger = ListenForTestAs(4711, directory.File("d"), SOCK_SEQPACKET);
  EXPECT_THAT(
      DescriptorClient::Connect({.path = directory.File("d")}, kToken, absl::InfiniteFuture())
          .status(),
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(directory.File("d") + ": uid 4711")));
  EXPECT_EQ(ReceiveAllForTest(stranger), "");
}

}  // namespace
}  // namespace forestage
