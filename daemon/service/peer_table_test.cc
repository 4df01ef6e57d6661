#include "daemon/service/peer_table.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/syscall.h>

#include "common/child_process.h"
#include "common/status_matchers.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

UniqueFd MakeSocket() { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

PeerIdentity PeerOf(uid_t uid) {
  PeerIdentity peer;
  peer.uid = uid;
  return peer;
}

std::string NameOf(const UniqueFd& fd) { return absl::StrCat("fd:", fd.get()); }

TEST(PeerTableTest, FindsWhoConnectedAndNobodyElse) {
  PeerTable peers({.connections_max = 2, .connections_per_user_max = 2});
  const UniqueFd connection = MakeSocket();
  ASSERT_OK(peers.Add(connection.get(), PeerOf(7)));
  ASSERT_OK_AND_ASSIGN(const PeerIdentity found, peers.Find(NameOf(connection)));
  EXPECT_EQ(found.uid, 7u);
  for (const char* other : {"fd:99999", "fd:", "ipv4:127.0.0.1:1", "unix:", ""}) {
    EXPECT_THAT(peers.Find(other).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("did not connect")));
  }
}

TEST(PeerTableTest, SweepForgetsClosedConnectionsAndTheirProcesses) {
  PeerTable peers({.connections_max = 2, .connections_per_user_max = 2});
  const UniqueFd open = MakeSocket();
  UniqueFd closed = MakeSocket();
  // Stands for the pidfd.
  auto pidfd = std::make_shared<const UniqueFd>(dup(open.get()));
  const std::weak_ptr<const UniqueFd> watch = pidfd;
  ASSERT_OK(peers.Add(open.get(), PeerOf(7)));
  PeerIdentity peer = PeerOf(7);
  peer.pidfd = std::move(pidfd);
  ASSERT_OK(peers.Add(closed.get(), peer));
  peer.pidfd.reset();
  peers.Sweep();
  EXPECT_EQ(peers.size(), 2u);
  const int number = closed.get();
  closed.Reset();
  // The number is another file's by now.
  const UniqueFd other(fcntl(open.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(other.get(), number);
  peers.Sweep();
  EXPECT_EQ(peers.size(), 1u);
  EXPECT_TRUE(watch.expired());
}

TEST(PeerTableTest, SweepEndsConnectionsOfProcessesThatHaveExited) {
  PeerTable peers({.connections_max = 2, .connections_per_user_max = 2});
  for (const bool exited : {false, true}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd ours(ends[0]);
    // A child has it, and the process that connected is gone.
    const UniqueFd theirs(ends[1]);
    ChildProcess process([] { pause(); });
    PeerIdentity peer = PeerOf(7);
    peer.pidfd = std::make_shared<const UniqueFd>(
        static_cast<int>(syscall(SYS_pidfd_open, process.pid(), 0)));
    ASSERT_TRUE(peer.pidfd->valid());
    ASSERT_OK(peers.Add(ours.get(), peer));
    if (exited) {
      kill(process.pid(), SIGKILL);
      process.Wait();
    }
    peers.Sweep();
    pollfd entry = {.fd = ours.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, 0) > 0, exited);
    // It is forgotten when gRPC has closed it.
    EXPECT_EQ(peers.size(), 1u);
  }
}

TEST(PeerTableTest, OneUserCannotHaveAllConnections) {
  PeerTable peers({.connections_max = 3, .connections_per_user_max = 2});
  const UniqueFd sockets[4] = {MakeSocket(), MakeSocket(), MakeSocket(), MakeSocket()};
  ASSERT_OK(peers.Add(sockets[0].get(), PeerOf(7)));
  ASSERT_OK(peers.Add(sockets[1].get(), PeerOf(7)));
  EXPECT_THAT(peers.Add(sockets[2].get(), PeerOf(7)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("uid 7")));
  EXPECT_OK(peers.Add(sockets[2].get(), PeerOf(8)));
  EXPECT_THAT(peers.Add(sockets[3].get(), PeerOf(9)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("3 connections")));
}

}  // namespace
}  // namespace forestage
