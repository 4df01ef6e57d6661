#include "daemon/delivery/descriptor_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/memfd.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "daemon/delivery/descriptor_request.h"

namespace forestage {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr SessionToken kToken = {1, 2, 3};

// One session, of this process.
class DirectoryFake : public DeliveryDirectory {
 public:
  absl::StatusOr<uint64_t> FindByToken(const SessionToken& token,
                                       const PeerIdentity& peer) override {
    if (token != kToken || peer.pid != getpid()) return absl::PermissionDeniedError("no token");
    return 7;
  }
  absl::StatusOr<DeliveryAccount> AdmitShards(uint64_t session, uint32_t first_index,
                                              size_t /*count*/) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(session, 7u);
    if (first_index != received_.size()) return absl::InvalidArgumentError("a gap");
    return std::make_shared<int>(0);
  }
  void RefuseShards(uint64_t /*session*/, std::vector<UniqueFd> descriptors,
                    DeliveryAccount account, absl::string_view /*why*/) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_NE(account, nullptr);
    refused_ += descriptors.size();
  }
  absl::StatusOr<uint32_t> AddShards(uint64_t session, uint32_t first_index,
                                     std::vector<UniqueFd> descriptors,
                                     DeliveryAccount account) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(session, 7u);
    EXPECT_NE(account, nullptr);
    if (first_index != received_.size()) return absl::InvalidArgumentError("a gap");
    for (UniqueFd& descriptor : descriptors) received_.push_back(std::move(descriptor));
    return static_cast<uint32_t>(received_.size());
  }
  absl::StatusOr<DeliveryAccount> AdmitNamedShards(uint64_t session, uint32_t first_index,
                                                   size_t /*count*/) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(session, 7u);
    if (first_index != named_) return absl::InvalidArgumentError("a gap");
    return std::make_shared<int>(0);
  }
  void LendShards(uint64_t session, std::vector<UniqueFd> named, std::vector<gid_t> /*groups*/,
                  DeliveryAccount account,
                  std::function<void(absl::StatusOr<std::vector<SharedFd>>)> done) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(session, 7u);
    EXPECT_NE(account, nullptr);
    named_ += named.size();
    borrower_count_ = named.size();
    borrower_ = std::move(done);
  }
  // Waits for a request to borrow and lends what is not null.
  void Lend(std::vector<SharedFd> loans) {
    absl::MutexLock lock(&mutex_);
    const auto asked = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return borrower_ != nullptr; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&asked), kPatience));
    EXPECT_EQ(borrower_count_, loans.size());
    std::exchange(borrower_, nullptr)(std::move(loans));
  }
  void WhenReady(uint64_t /*session*/,
                 std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) override {
    absl::MutexLock lock(&mutex_);
    waiters_.push_back(std::move(done));
  }
  // Waits for a request and answers it.
  void Answer(bool ok) {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](std::vector<std::function<void(absl::StatusOr<DeliveredDescriptors>)>>* waiters) {
              return !waiters->empty();
            },
            &waiters_),
        kPatience));
    for (auto& waiter : waiters_) {
      if (ok) {
        waiter(DeliveredDescriptors{.catalog = *MakeFixedSizeMemfd("catalog", 1),
                                    .board = *MakeFixedSizeMemfd("board", 2)});
      } else {
        waiter(absl::InvalidArgumentError("every header is damaged"));
      }
    }
    waiters_.clear();
  }
  size_t refused() const {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }
  size_t received() const {
    absl::MutexLock lock(&mutex_);
    return received_.size();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<UniqueFd> received_ ABSL_GUARDED_BY(mutex_);
  size_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t named_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t borrower_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void(absl::StatusOr<std::vector<SharedFd>>)> borrower_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(absl::StatusOr<DeliveredDescriptors>)>> waiters_
      ABSL_GUARDED_BY(mutex_);
};

bool SameFile(int a, int b) {
  struct stat of_a = {};
  struct stat of_b = {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_ino == of_b.st_ino &&
         of_a.st_dev == of_b.st_dev;
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class DescriptorExchangeTest : public ::testing::Test {
 protected:
  void StartWith(const DescriptorExchange::Options& options) {
    auto listener = UnixListener::Bind({.path = path_, .type = SOCK_SEQPACKET});
    ASSERT_OK(listener);
    auto exchange = DescriptorExchange::Create(options, std::move(*listener), directory_);
    ASSERT_OK(exchange);
    exchange_ = std::move(*exchange);
    exchange_->Start();
  }
  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static absl::Status Send(int socket, const DescriptorRequest& request, size_t descriptors) {
    const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const std::vector<int> numbers(descriptors, file.get());
    return SendDescriptorMessage(
        socket, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&request), sizeof(request)),
        numbers, absl::Now() + kPatience);
  }
  struct Received {
    absl::Status status;
    uint32_t accepted_count = 0;
    std::vector<UniqueFd> descriptors;
    // Empty unless it is the answer to a request to borrow.
    std::vector<uint8_t> lent;
  };
  // An error: the daemon closed the connection without a reply.
  static absl::StatusOr<Received> Receive(int socket) {
    auto message =
        ReceiveDescriptorMessage(socket, kDescriptorMessageBytesMax, absl::Now() + kPatience);
    if (!message.ok()) return message.status();
    DescriptorReply reply;
    EXPECT_THAT(message->bytes.size(), AnyOf(sizeof(reply), sizeof(BorrowReply)));
    std::memcpy(&reply, message->bytes.data(), sizeof(reply));
    Received received{absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message),
                      reply.accepted_count,
                      std::move(message->descriptors),
                      {}};
    if (message->bytes.size() == sizeof(BorrowReply)) {
      BorrowReply loans;
      std::memcpy(&loans, message->bytes.data(), sizeof(loans));
      received.lent.assign(loans.lent.begin(), loans.lent.end());
    }
    return received;
  }
  static DescriptorRequest Batch(uint32_t first, uint32_t count) {
    DescriptorRequest request;
    request.token = kToken;
    request.first_shard_index = first;
    request.descriptor_count = count;
    return request;
  }
  static DescriptorRequest Borrow(uint32_t first, uint32_t count) {
    DescriptorRequest request = Batch(first, count);
    request.kind = DescriptorRequestKind::kBorrow;
    return request;
  }
  static void WaitUntilReadable(int socket) {
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  }
  static SharedFd NewFile() {
    return std::make_shared<const UniqueFd>(*MakeFixedSizeMemfd("lent", 1));
  }
  static DescriptorRequest Delivery() {
    DescriptorRequest request;
    request.kind = DescriptorRequestKind::kDelivery;
    request.token = kToken;
    return request;
  }

  const TemporaryDirectoryForTest folder_;
  const std::string path_ = folder_.File("d.sock");
  DirectoryFake directory_;
  std::unique_ptr<DescriptorExchange> exchange_;
};

TEST_F(DescriptorExchangeTest, TakesBatchesAndDelivers) {
  StartWith({});
  const UniqueFd client = Connect();
  ASSERT_OK(Send(client.get(), Batch(0, 253), 253));
  ASSERT_OK_AND_ASSIGN(const Received first, Receive(client.get()));
  EXPECT_OK(first.status);
  EXPECT_EQ(first.accepted_count, 253u);
  ASSERT_OK(Send(client.get(), Batch(253, 2), 2));
  ASSERT_OK_AND_ASSIGN(const Received second, Receive(client.get()));
  EXPECT_EQ(second.accepted_count, 255u);
  ASSERT_OK(Send(client.get(), Delivery(), 0));
  directory_.Answer(true);
  ASSERT_OK_AND_ASSIGN(const Received delivered, Receive(client.get()));
  EXPECT_OK(delivered.status);
  EXPECT_EQ(delivered.descriptors.size(), 2u);
}

TEST_F(DescriptorExchangeTest, LendsWhatThereIsAndSaysOfWhichShards) {
  StartWith({});
  const UniqueFd client = Connect();
  const SharedFd tenth = NewFile();
  const SharedFd last = NewFile();
  std::vector<SharedFd> loans(253);
  loans[9] = tenth;
  loans[252] = last;
  ASSERT_OK(Send(client.get(), Borrow(0, 253), 253));
  directory_.Lend(loans);
  ASSERT_OK_AND_ASSIGN(const Received lent, Receive(client.get()));
  EXPECT_OK(lent.status);
  std::vector<uint8_t> expected(32);
  expected[9 / 8] = 1 << 9 % 8;
  expected[252 / 8] = 1 << 252 % 8;
  EXPECT_EQ(lent.lent, expected);
  ASSERT_EQ(lent.descriptors.size(), 2u);
  EXPECT_TRUE(SameFile(lent.descriptors[0].get(), tenth->get()));
  EXPECT_TRUE(SameFile(lent.descriptors[1].get(), last->get()));

  ASSERT_OK(Send(client.get(), Borrow(253, 1), 1));
  directory_.Lend({nullptr});
  ASSERT_OK_AND_ASSIGN(const Received none, Receive(client.get()));
  EXPECT_EQ(none.lent, std::vector<uint8_t>(32));
  EXPECT_TRUE(none.descriptors.empty());

  ASSERT_OK(Send(client.get(), Batch(0, 1), 1));
  ASSERT_OK_AND_ASSIGN(const Received batch, Receive(client.get()));
  EXPECT_EQ(batch.accepted_count, 1u) << "the connection goes on";
}

TEST_F(DescriptorExchangeTest, BorrowersThatLieAreRefusedAndNothingIsKept) {
  StartWith({});
  const size_t before = OpenDescriptors();
  for (const DescriptorRequest& request : {Borrow(0, 2), Borrow(1, 3), Borrow(0, 0)}) {
    const UniqueFd client = Connect();
    ASSERT_OK(Send(client.get(), request, 3));
    ASSERT_OK_AND_ASSIGN(const Received received, Receive(client.get()));
    EXPECT_THAT(received.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
    EXPECT_FALSE(Receive(client.get()).ok()) << "closed";
  }
  EXPECT_EQ(directory_.refused(), 2u) << "of the batch that came with more, what was announced";
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorExchangeTest, BorrowerThatLeavesKeepsNothing) {
  StartWith({});
  const SharedFd file = NewFile();
  {
    const UniqueFd client = Connect();
    ASSERT_OK(Send(client.get(), Borrow(0, 1), 1));
  }
  directory_.Lend({file});
  const UniqueFd next = Connect();
  ASSERT_OK(Send(next.get(), Batch(0, 1), 1));
  ASSERT_OK(Receive(next.get()));
  // The exchange takes the answers in order, so this one is through.
  ASSERT_OK(Send(next.get(), Delivery(), 0));
  directory_.Answer(true);
  ASSERT_OK(Receive(next.get()));
  EXPECT_EQ(file.use_count(), 1);
}

TEST_F(DescriptorExchangeTest, LoansThatNobodyReadsAreLimited) {
  StartWith({.loans_unread_per_user_max = 40});
  const SharedFd file = NewFile();
  std::vector<UniqueFd> clients;
  // A message counts for at least 16: the third one would be too many.
  for (uint32_t i = 0; i < 3; ++i) {
    clients.push_back(Connect());
    ASSERT_OK(Send(clients.back().get(), Borrow(i, 1), 1));
    directory_.Lend({file});
    WaitUntilReadable(clients.back().get());
  }
  // The daemon closes the first one, since it says what makes no sense, and still counts it.
  ASSERT_OK(Send(clients[0].get(), Borrow(99, 1), 1));
  ASSERT_OK_AND_ASSIGN(const Received beyond, Receive(clients[2].get()));
  EXPECT_TRUE(beyond.descriptors.empty());
  ASSERT_OK(Send(clients[2].get(), Borrow(3, 1), 1));
  directory_.Lend({file});
  ASSERT_OK_AND_ASSIGN(const Received again, Receive(clients[2].get()));
  EXPECT_TRUE(again.descriptors.empty());
  // Whoever reads, or goes, makes room.
  ASSERT_OK_AND_ASSIGN(const Received read, Receive(clients[1].get()));
  EXPECT_EQ(read.descriptors.size(), 1u);
  ASSERT_OK(Send(clients[2].get(), Borrow(4, 1), 1));
  directory_.Lend({file});
  ASSERT_OK_AND_ASSIGN(const Received lent, Receive(clients[2].get()));
  EXPECT_EQ(lent.descriptors.size(), 1u);
}

TEST_F(DescriptorExchangeTest, FailedSessionAnswersTheWaitingDelivery) {
  StartWith({});
  const UniqueFd client = Connect();
  ASSERT_OK(Send(client.get(), Delivery(), 0));
  directory_.Answer(false);
  ASSERT_OK_AND_ASSIGN(const Received delivered, Receive(client.get()));
  EXPECT_THAT(delivered.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("damaged")));
  EXPECT_TRUE(delivered.descriptors.empty());
}

TEST_F(DescriptorExchangeTest, CountsThatDoNotMatchAreRefusedAndNothingIsKept) {
  StartWith({});
  const size_t before = OpenDescriptors();
  for (const size_t sent : {1, 3}) {
    const UniqueFd client = Connect();
    ASSERT_OK(Send(client.get(), Batch(0, 2), sent));
    ASSERT_OK_AND_ASSIGN(const Received received, Receive(client.get()));
    EXPECT_THAT(received.status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch of 2")));
    EXPECT_FALSE(Receive(client.get()).ok()) << "closed";
  }
  EXPECT_EQ(directory_.received(), 0u);
  // Of what came too much, no more than was announced was ever taken.
  EXPECT_EQ(directory_.refused(), 1u + 2u);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorExchangeTest, DescriptorsOfRefusedRequestsAreClosed) {
  StartWith({});
  const size_t before = OpenDescriptors();
  DescriptorRequest wrong_token = Batch(0, 1);
  wrong_token.token[0] ^= 1;
  DescriptorRequest wrong_version = Batch(0, 1);
  wrong_version.version = 99;
  for (const DescriptorRequest& request : {wrong_token, wrong_version, Batch(5, 1)}) {
    const UniqueFd client = Connect();
    ASSERT_OK(Send(client.get(), request, 1));
    ASSERT_OK_AND_ASSIGN(const Received received, Receive(client.get()));
    EXPECT_FALSE(received.status.ok());
    EXPECT_FALSE(Receive(client.get()).ok()) << "closed";
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorExchangeTest, ClientThatLeavesWhileItWaitsIsForgotten) {
  StartWith({});
  {
    const UniqueFd client = Connect();
    ASSERT_OK(Send(client.get(), Delivery(), 0));
    // The request is known once it can be answered; by then the client is gone.
  }
  directory_.Answer(true);
  const UniqueFd next = Connect();
  ASSERT_OK(Send(next.get(), Batch(0, 1), 1));
  ASSERT_OK_AND_ASSIGN(const Received received, Receive(next.get()));
  EXPECT_OK(received.status);
}

TEST_F(DescriptorExchangeTest, WhoTalksWithoutWaitingIsClosed) {
  StartWith({});
  const UniqueFd client = Connect();
  ASSERT_OK(Send(client.get(), Delivery(), 0));
  ASSERT_OK(Send(client.get(), Batch(0, 1), 1));
  EXPECT_FALSE(Receive(client.get()).ok());
  EXPECT_EQ(directory_.received(), 0u);
}

TEST_F(DescriptorExchangeTest, ConnectionsBeyondTheLimitAreTold) {
  StartWith({.connections_max = 1});
  const UniqueFd first = Connect();
  ASSERT_OK(Send(first.get(), Batch(0, 1), 1));
  ASSERT_OK(Receive(first.get()));
  const UniqueFd second = Connect();
  ASSERT_OK_AND_ASSIGN(const Received refused, Receive(second.get()));
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("place")));
}

TEST_F(DescriptorExchangeTest, OneUserCannotHaveAllConnections) {
  StartWith({.connections_per_user_max = 1});
  const UniqueFd first = Connect();
  ASSERT_OK(Send(first.get(), Batch(0, 1), 1));
  ASSERT_OK(Receive(first.get()));
  const UniqueFd second = Connect();
  ASSERT_OK_AND_ASSIGN(const Received refused, Receive(second.get()));
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("uid")));
}

TEST_F(DescriptorExchangeTest, SilentConnectionsAreClosed) {
  StartWith({.idle_timeout = absl::ZeroDuration()});
  const UniqueFd client = Connect();
  EXPECT_THAT(Receive(client.get()).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

TEST_F(DescriptorExchangeTest, StopClosesEverythingAndLateAnswersGoNowhere) {
  StartWith({});
  const UniqueFd client = Connect();
  ASSERT_OK(Send(client.get(), Delivery(), 0));
  ASSERT_OK(Send(Connect().get(), Batch(0, 1), 1));
  exchange_->StopAccepting();
  exchange_->Stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(Receive(client.get()).ok());
  exchange_.reset();
}

TEST_F(DescriptorExchangeTest, ManyRanksAtOnce) {
  StartWith({});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 50; ++round) {
        const UniqueFd client = Connect();
        DescriptorRequest request = Batch(16'383, 1);
        EXPECT_OK(Send(client.get(), request, 1));
        const absl::StatusOr<Received> received = Receive(client.get());
        EXPECT_OK(received);
        if (received.ok()) {
          EXPECT_EQ(received->status.message(), "a gap");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DescriptorRequestTest, ReplyIsCutToFit) {
  const DescriptorReply reply =
      MakeDescriptorReply(absl::InvalidArgumentError(std::string(5000, 'x')), 3);
  EXPECT_EQ(reply.code, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(reply.accepted_count, 3u);
  EXPECT_EQ(std::strlen(reply.message), sizeof(reply.message) - 1);
}

}  // namespace
}  // namespace forestage
