#include "common/peer_identity.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

SocketPair MakeSocketPair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST(PeerIdentityTest, NamesTheProcessThatMadeThePair) {
  const SocketPair pair = MakeSocketPair();
  ASSERT_OK_AND_ASSIGN(const PeerIdentity peer, PeerIdentityOf(pair.ours.get()));
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, getuid());
  EXPECT_EQ(peer.gid, getgid());
  ASSERT_NE(peer.pidfd, nullptr);
  EXPECT_FALSE(ProcessExited(peer));
}

TEST(PeerIdentityTest, TwoConnectionsOfOneProcessAreTheSame) {
  const SocketPair first = MakeSocketPair();
  const SocketPair second = MakeSocketPair();
  ASSERT_OK_AND_ASSIGN(const PeerIdentity a, PeerIdentityOf(first.ours.get()));
  ASSERT_OK_AND_ASSIGN(const PeerIdentity b, PeerIdentityOf(second.theirs.get()));
  EXPECT_TRUE(SameProcess(a, b));
  PeerIdentity other_user = b;
  other_user.uid = a.uid + 1;
  EXPECT_FALSE(SameProcess(a, other_user));
  PeerIdentity unnamed = a;
  unnamed.pid = 0;
  unnamed.pidfd = nullptr;
  EXPECT_FALSE(SameProcess(unnamed, unnamed));
}

TEST(PeerIdentityTest, SeesTheExitOfTheProcessThatConnected) {
  int release[2] = {-1, -1};
  ASSERT_EQ(pipe(release), 0);
  int channel[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel), 0);
  // The child makes the pair that names it and sends one end over `channel`'s path in /proc.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) _exit(1);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    char byte = 'x';
    iovec vector = {.iov_base = &byte, .iov_len = 1};
    msghdr header = {};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    *reinterpret_cast<int*>(CMSG_DATA(rights)) = ends[0];
    if (sendmsg(channel[1], &header, 0) < 0) _exit(1);
    (void)!read(release[0], &byte, 1);
    _exit(0);
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  char byte = 0;
  iovec vector = {.iov_base = &byte, .iov_len = 1};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ASSERT_EQ(recvmsg(channel[0], &header, 0), 1);
  const UniqueFd end(*reinterpret_cast<int*>(CMSG_DATA(CMSG_FIRSTHDR(&header))));
  ASSERT_OK_AND_ASSIGN(const PeerIdentity peer, PeerIdentityOf(end.get()));
  EXPECT_EQ(peer.pid, child);
  EXPECT_FALSE(ProcessExited(peer));
  ASSERT_EQ(write(release[1], "g", 1), 1);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(ProcessExited(peer));
  for (int fd : {release[0], release[1], channel[0], channel[1]}) close(fd);
}

}  // namespace
}  // namespace forestage
