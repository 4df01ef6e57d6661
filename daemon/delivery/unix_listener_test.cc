#include "daemon/delivery/unix_listener.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class UnixListenerTest : public ::testing::Test {
 protected:
  static UniqueFd Connect(const std::string& path, int type) {
    UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      fd.Reset();
    }
    return fd;
  }

  const TemporaryDirectoryForTest directory_;
  const std::string path_ = directory_.File("made/for/it/d.sock");
};

TEST_F(UnixListenerTest, AcceptsAndNamesThePeer) {
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       UnixListener::Bind({.path = path_, .type = SOCK_SEQPACKET}));
  EXPECT_THAT(listener->Accept().status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  const UniqueFd client = Connect(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(client.valid());
  ASSERT_OK_AND_ASSIGN(const UnixListener::Connection connection, listener->Accept());
  EXPECT_EQ(connection.peer.pid, getpid());
  EXPECT_NE(fcntl(connection.socket.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(connection.socket.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(UnixListenerTest, SocketIsForItsOwnerOnlyAndGoesWithTheListener) {
  {
    ASSERT_OK_AND_ASSIGN(const auto listener,
                         UnixListener::Bind({.path = path_, .type = SOCK_STREAM}));
    struct stat attributes = {};
    ASSERT_EQ(stat(path_.c_str(), &attributes), 0);
    EXPECT_EQ(attributes.st_mode & 0777u, 0600u);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
}

TEST_F(UnixListenerTest, ModeAndGroupAreAsAskedWhateverTheUmask) {
  // A group that this process has; root may take any.
  const gid_t group = getuid() == 0 ? 4242 : getgid();
  const mode_t umask_before = umask(0077);
  const auto listener =
      UnixListener::Bind({.path = path_, .type = SOCK_STREAM, .mode = 0660, .group = group});
  umask(umask_before);
  ASSERT_OK(listener);
  struct stat attributes = {};
  ASSERT_EQ(stat(path_.c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 07777u, 0660u);
  EXPECT_EQ(attributes.st_gid, group);
}

TEST_F(UnixListenerTest, DirectoryInWhichEverybodyMayWriteIsRefused) {
  const std::string open_directory = directory_.File("open");
  ASSERT_EQ(mkdir(open_directory.c_str(), 0755), 0);
  ASSERT_EQ(chmod(open_directory.c_str(), 0777), 0);
  const UnixListener::Options options = {.path = open_directory + "/s", .type = SOCK_STREAM};
  EXPECT_THAT(UnixListener::Bind(options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(open_directory)));
  // As /tmp: others cannot remove what is not theirs.
  ASSERT_EQ(chmod(open_directory.c_str(), 01777), 0);
  EXPECT_OK(UnixListener::Bind(options));
}

TEST_F(UnixListenerTest, LivingListenerIsNeverReplaced) {
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       UnixListener::Bind({.path = path_, .type = SOCK_STREAM}));
  EXPECT_THAT(UnixListener::Bind({.path = path_, .type = SOCK_STREAM}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr(std::to_string(getpid())))));
  // Somebody who knows no lock file listens there.
  std::filesystem::remove(path_ + ".lock");
  EXPECT_THAT(UnixListener::Bind({.path = path_, .type = SOCK_STREAM}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("living")));
  EXPECT_THAT(UnixListener::Bind({.path = path_, .type = SOCK_SEQPACKET}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("living")));
  EXPECT_TRUE(Connect(path_, SOCK_STREAM).valid());
}

TEST_F(UnixListenerTest, SocketOfAnotherIsNotRemovedAtTheEnd) {
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       UnixListener::Bind({.path = path_, .type = SOCK_STREAM}));
  std::filesystem::remove(path_);
  std::ofstream(path_) << "new owner";
  listener->Close();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(UnixListenerTest, OneOfManyStartsWins) {
  std::vector<std::unique_ptr<UnixListener>> won(8);
  std::vector<std::thread> threads;
  for (auto& slot : won) {
    threads.emplace_back([this, &slot] {
      auto listener = UnixListener::Bind({.path = path_, .type = SOCK_STREAM});
      if (listener.ok()) slot = std::move(*listener);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count_if(won.begin(), won.end(), [](const auto& slot) { return slot != nullptr; }),
            1);
  EXPECT_TRUE(Connect(path_, SOCK_STREAM).valid());
}

TEST_F(UnixListenerTest, RefusesPathsThatCannotBe) {
  EXPECT_THAT(UnixListener::Bind({.path = "relative.sock", .type = SOCK_STREAM}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absolute")));
  EXPECT_THAT(
      UnixListener::Bind({.path = "/tmp/" + std::string(200, 'x'), .type = SOCK_STREAM}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107 bytes")));
}

// In a thread of its own, which must end then: the kernel knows users of threads, and only the C
// library changes that of all. Not in a child that was forked: other threads, the sanitizers' among
// them, may hold locks at the fork.
void BecomeAnotherUser() { ASSERT_EQ(syscall(SYS_setresuid, 65534, 65534, 65534), 0); }

TEST_F(UnixListenerTest, AnotherUserIsRefusedAtAcceptWhereOnlyOwnersComeIn) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_OK_AND_ASSIGN(
      const auto listener,
      UnixListener::Bind({.path = path_, .type = SOCK_STREAM, .owners_only = true}));
  // As if an administrator had opened it.
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  for (auto parent = std::filesystem::path(path_).parent_path(); parent != parent.root_path();
       parent = parent.parent_path()) {
    if (parent.string().size() >= directory_.path().size()) {
      std::filesystem::permissions(parent, std::filesystem::perms(0755));
    }
  }
  UniqueFd client;
  std::thread other([&] {
    BecomeAnotherUser();
    client = Connect(path_, SOCK_STREAM);
  });
  other.join();
  // Else this process could not be looked at any more, by a leak checker for one.
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
  ASSERT_TRUE(client.valid());
  EXPECT_THAT(listener->Accept().status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("65534")));
  char byte = 0;
  EXPECT_EQ(read(client.get(), &byte, 1), 0);
}

TEST_F(UnixListenerTest, WithoutDescriptorsConnectionsAreRefusedAndItRecovers) {
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       UnixListener::Bind({.path = path_, .type = SOCK_STREAM}));
  const UniqueFd client = Connect(path_, SOCK_STREAM);
  ASSERT_TRUE(client.valid());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const absl::Status refused = listener->Accept().status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("NOFILE")));
  const UniqueFd second = Connect(path_, SOCK_STREAM);
  ASSERT_TRUE(second.valid());
  absl::StatusOr<UnixListener::Connection> accepted = listener->Accept();
  EXPECT_OK(accepted);
}

}  // namespace
}  // namespace forestage
