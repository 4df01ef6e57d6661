#include "common/descriptor_passing.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/child_process.h"
#include "common/memfd.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

// Far enough that a test which works never meets it.
absl::Time Far() { return absl::Now() + absl::Seconds(60); }
absl::Time Near() { return absl::Now() + absl::Milliseconds(30); }

struct SocketPair {
  SocketPair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    first.Reset(ends[0]);
    second.Reset(ends[1]);
  }
  UniqueFd first;
  UniqueFd second;
};

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string AsText(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Memfds that hold their own index.
std::vector<UniqueFd> MakeNumbered(size_t count) {
  std::vector<UniqueFd> files;
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd("numbered", AsBytes(absl::StrCat(i)));
    EXPECT_OK(fd);
    files.push_back(*std::move(fd));
  }
  return files;
}
std::vector<int> NumbersOf(const std::vector<UniqueFd>& files) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : files) numbers.push_back(fd.get());
  return numbers;
}
std::string ContentOf(const UniqueFd& fd) {
  char buffer[32] = {};
  const ssize_t bytes = pread(fd.get(), buffer, sizeof(buffer), 0);
  return bytes < 0 ? "unreadable" : std::string(buffer, static_cast<size_t>(bytes));
}
void ExpectNumbered(const std::vector<UniqueFd>& files) {
  for (size_t i = 0; i < files.size(); ++i) EXPECT_EQ(ContentOf(files[i]), absl::StrCat(i));
}

size_t OpenDescriptorCount() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

// Allows this process `spare` more descriptors than the first free number, for good.
void LimitDescriptors(int spare) {
  const int first_free = dup(0);
  ASSERT_GE(first_free, 0);
  close(first_free);
  const rlimit limit = {.rlim_cur = static_cast<rlim_t>(first_free + spare),
                        .rlim_max = static_cast<rlim_t>(first_free + spare)};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(DescriptorPassingTest, HandsDescriptorsToAnotherProcess) {
  SocketPair sockets;
  ChildProcess child([&] {
    sockets.first.Reset();
    const std::vector<UniqueFd> files = MakeNumbered(3);
    EXPECT_OK(
        SendDescriptorMessage(sockets.second.get(), AsBytes("three"), NumbersOf(files), Far()));
  });
  sockets.second.Reset();
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(sockets.first.get(), 100, Far()));
  EXPECT_EQ(AsText(message.bytes), "three");
  ASSERT_EQ(message.descriptors.size(), 3u);
  ExpectNumbered(message.descriptors);
  EXPECT_EQ(child.Wait(), 0);
}

TEST(DescriptorPassingTest, CarriesAsManyAsTheKernelAllowsInOrder) {
  const SocketPair sockets;
  const std::vector<UniqueFd> files = MakeNumbered(kDescriptorsPerMessageMax);
  ASSERT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("all"), NumbersOf(files), Far()));
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(sockets.second.get(), 100, Far()));
  EXPECT_FALSE(message.descriptors_truncated);
  ASSERT_EQ(message.descriptors.size(), kDescriptorsPerMessageMax);
  ExpectNumbered(message.descriptors);
  for (const UniqueFd& fd : message.descriptors) {
    EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  }
}

TEST(DescriptorPassingTest, KeepsMessagesApart) {
  const SocketPair sockets;
  const std::vector<UniqueFd> files = MakeNumbered(1);
  ASSERT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("one"), {}, Far()));
  ASSERT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("two"), NumbersOf(files), Far()));
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage one,
                       ReceiveDescriptorMessage(sockets.second.get(), 100, Far()));
  EXPECT_EQ(AsText(one.bytes), "one");
  EXPECT_TRUE(one.descriptors.empty());
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage two,
                       ReceiveDescriptorMessage(sockets.second.get(), 100, Far()));
  EXPECT_EQ(AsText(two.bytes), "two");
  EXPECT_EQ(two.descriptors.size(), 1u);
}

TEST(DescriptorPassingTest, AReceiverThatIsOutOfDescriptorsGetsTheFirstAndIsTold) {
  SocketPair sockets;
  ChildProcess child([&] {
    sockets.second.Reset();
    LimitDescriptors(10);
    const absl::StatusOr<DescriptorMessage> message =
        ReceiveDescriptorMessage(sockets.first.get(), 100, Far());
    ASSERT_OK(message);
    EXPECT_EQ(AsText(message->bytes), "fifty");
    EXPECT_TRUE(message->descriptors_truncated);
    EXPECT_GE(message->descriptors.size(), 1u);
    EXPECT_LE(message->descriptors.size(), 10u);
    ExpectNumbered(message->descriptors);
  });
  sockets.first.Reset();
  const std::vector<UniqueFd> files = MakeNumbered(50);
  ASSERT_OK(SendDescriptorMessage(sockets.second.get(), AsBytes("fifty"), NumbersOf(files), Far()));
  EXPECT_EQ(child.Wait(), 0);
}

TEST(DescriptorPassingTest, ALongMessageIsCutAndSaysSo) {
  const SocketPair sockets;
  ASSERT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("123456789"), {}, Far()));
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(sockets.second.get(), 4, Far()));
  EXPECT_TRUE(message.bytes_truncated);
  EXPECT_EQ(AsText(message.bytes), "1234");
}

TEST(DescriptorPassingTest, DescriptorsOfADroppedMessageAreClosed) {
  const SocketPair sockets;
  const std::vector<UniqueFd> files = MakeNumbered(20);
  const size_t before = OpenDescriptorCount();
  ASSERT_OK(
      SendDescriptorMessage(sockets.first.get(), AsBytes("long one"), NumbersOf(files), Far()));
  ASSERT_OK(ReceiveDescriptorMessage(sockets.second.get(), 1, Far()));
  EXPECT_EQ(OpenDescriptorCount(), before);
}

TEST(DescriptorPassingTest, APeerThatClosedIsUnavailableForBothSides) {
  SocketPair sockets;
  sockets.second.Reset();
  EXPECT_THAT(ReceiveDescriptorMessage(sockets.first.get(), 100, Far()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  // Neither a signal.
  EXPECT_THAT(SendDescriptorMessage(sockets.first.get(), AsBytes("x"), {}, Far()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("EPIPE")));
}

TEST(DescriptorPassingTest, WhatWasSentBeforeTheCloseStillArrives) {
  SocketPair sockets;
  ASSERT_OK(SendDescriptorMessage(sockets.second.get(), AsBytes("last"), {}, Far()));
  sockets.second.Reset();
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(sockets.first.get(), 100, Far()));
  EXPECT_EQ(AsText(message.bytes), "last");
  EXPECT_FALSE(ReceiveDescriptorMessage(sockets.first.get(), 100, Far()).ok());
}

TEST(DescriptorPassingTest, APeerThatIsKilledWhileWeWaitIsUnavailable) {
  SocketPair sockets;
  ChildProcess child([&] {
    sockets.first.Reset();
    pause();
  });
  sockets.second.Reset();
  std::thread killer([&] { kill(child.pid(), SIGKILL); });
  EXPECT_THAT(ReceiveDescriptorMessage(sockets.first.get(), 100, Far()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  killer.join();
}

TEST(DescriptorPassingTest, WaitingForAMessageEndsAtTheDeadline) {
  const SocketPair sockets;
  for (const absl::Time deadline : {Near(), absl::Now(), absl::InfinitePast()}) {
    EXPECT_THAT(ReceiveDescriptorMessage(sockets.first.get(), 100, deadline),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waiting")));
  }
}

TEST(DescriptorPassingTest, SendingIntoAFullSocketEndsAtTheDeadlineAndGoesOnWhenItDrains) {
  const SocketPair sockets;
  const std::string text(1000, 'x');
  size_t sent = 0;
  absl::Status status;
  while ((status = SendDescriptorMessage(sockets.first.get(), AsBytes(text), {}, Near())).ok()) {
    ++sent;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_GT(sent, 0u);

  std::thread sender(
      [&] { EXPECT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes(text), {}, Far())); });
  for (size_t i = 0; i < sent + 1; ++i) {
    EXPECT_OK(ReceiveDescriptorMessage(sockets.second.get(), 2000, Far()));
  }
  sender.join();
}

// Without privileges: root may have any number of descriptors in flight.
void BecomeNobody() {
  if (geteuid() != 0) return;
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
}

TEST(DescriptorPassingTest, TooManyDescriptorsInFlightEndAtTheDeadlineAndLaterGo) {
  ChildProcess child([] {
    const SocketPair sockets;
    const std::vector<UniqueFd> files = MakeNumbered(32);
    const std::vector<int> numbers = NumbersOf(files);
    BecomeNobody();
    LimitDescriptors(64);
    size_t sent = 0;
    absl::Status status;
    while (sent < 100 &&
           (status = SendDescriptorMessage(sockets.first.get(), AsBytes("32"), numbers, Near()))
               .ok()) {
      ++sent;
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in flight")));
    for (size_t i = 0; i < sent; ++i) {
      EXPECT_OK(ReceiveDescriptorMessage(sockets.second.get(), 100, Far()));
    }
    EXPECT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("32"), numbers, Far()));
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(DescriptorPassingTest, ASenderAheadOfItsReceiverWaitsForDescriptorsInFlight) {
  ChildProcess child([] {
    constexpr size_t kMessages = 40;
    SocketPair sockets;
    const std::vector<UniqueFd> files = MakeNumbered(32);
    const std::vector<int> numbers = NumbersOf(files);
    BecomeNobody();
    LimitDescriptors(64);
    std::thread receiver([&] {
      for (size_t i = 0; i < kMessages; ++i) {
        const absl::StatusOr<DescriptorMessage> message =
            ReceiveDescriptorMessage(sockets.second.get(), 100, Far());
        ASSERT_OK(message);
        EXPECT_EQ(message->descriptors.size(), 32u);
      }
    });
    for (size_t i = 0; i < kMessages; ++i) {
      EXPECT_OK(SendDescriptorMessage(sockets.first.get(), AsBytes("32"), numbers, Far()));
    }
    // Ends a receiver that waits for what was not sent.
    sockets.first.Reset();
    receiver.join();
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(DescriptorPassingTest, PeekLeavesTheMessageAndTakesNoDescriptor) {
  const SocketPair pair;
  EXPECT_THAT(PeekDescriptorMessage(pair.second.get(), 16).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
  const std::vector<UniqueFd> files = MakeNumbered(2);
  ASSERT_OK(SendDescriptorMessage(pair.first.get(), AsBytes("hello"), NumbersOf(files), Far()));
  const size_t before = OpenDescriptorCount();
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const DescriptorMessage peeked,
                         PeekDescriptorMessage(pair.second.get(), 3));
    EXPECT_EQ(AsText(peeked.bytes), "hel");
    EXPECT_TRUE(peeked.bytes_truncated);
    EXPECT_TRUE(peeked.descriptors.empty());
  }
  EXPECT_EQ(OpenDescriptorCount(), before);
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(pair.second.get(), 16, Far()));
  EXPECT_EQ(AsText(message.bytes), "hello");
  ExpectNumbered(message.descriptors);
}

TEST(DescriptorPassingTest, DiscardDropsOneMessageWithItsDescriptors) {
  const SocketPair pair;
  DiscardDescriptorMessage(pair.second.get());
  int ends[2] = {};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  ASSERT_OK(SendDescriptorMessage(pair.first.get(), AsBytes("first"), {writer.get()}, Far()));
  ASSERT_OK(SendDescriptorMessage(pair.first.get(), AsBytes("second"), {}, Far()));
  writer.Reset();
  DiscardDescriptorMessage(pair.second.get());
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "nobody holds the other end";
  ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                       ReceiveDescriptorMessage(pair.second.get(), 16, Far()));
  EXPECT_EQ(AsText(message.bytes), "second");
}

TEST(DescriptorPassingTest, TakesNoMoreDescriptorsThanAskedFor) {
  const std::vector<UniqueFd> files = MakeNumbered(5);
  // Odd and even: the kernel would use padding behind an odd number.
  for (const size_t wanted : {0u, 1u, 2u, 3u, 4u, 5u}) {
    const SocketPair pair;
    ASSERT_OK(SendDescriptorMessage(pair.first.get(), AsBytes("m"), NumbersOf(files), Far()));
    ASSERT_OK_AND_ASSIGN(const DescriptorMessage message,
                         ReceiveDescriptorMessage(pair.second.get(), 16, Far(), wanted));
    EXPECT_EQ(message.descriptors.size(), wanted);
    EXPECT_EQ(message.descriptors_truncated, wanted < 5);
    ExpectNumbered(message.descriptors);
  }
}

}  // namespace
}  // namespace forestage
