#include "client/src/socket_connect.h"

#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/unix_listener_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kStranger = 4711;

TEST(SocketConnectTest, SaysWhatIsWrong) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  EXPECT_THAT(ConnectUnixSocket({.path = path}, SOCK_STREAM, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  { const UniqueFd listener = ListenForTest(path, SOCK_STREAM); }
  EXPECT_THAT(ConnectUnixSocket({.path = path}, SOCK_STREAM, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ECONNREFUSED")));
  const std::string long_path = directory.File(std::string(108, 'x'));
  EXPECT_THAT(ConnectUnixSocket({.path = long_path}, SOCK_STREAM, absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107 bytes")));
}

TEST(SocketConnectTest, SaysWhatToDoForEveryWayNotToReachADaemon) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  const auto connect = [](const std::string& to) {
    return ConnectToRanksSocket({.path = to}, absl::InfinitePast()).status();
  };
  EXPECT_THAT(connect(path),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("no daemon answers at " + path),
                                                          HasSubstr("start forestaged"))));
  { const UniqueFd listener = ListenForTest(path, SOCK_STREAM); }
  EXPECT_THAT(connect(path), StatusIs(absl::StatusCode::kUnavailable,
                                      AllOf(HasSubstr("no daemon answers at " + path),
                                            HasSubstr("ECONNREFUSED"))));
  EXPECT_THAT(connect(directory.File(std::string(108, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shorter path")));
}

TEST(SocketConnectTest, NamesTheSocketThatWasMeantWhereAnotherOneOfTheDaemonIsGiven) {
  const TemporaryDirectoryForTest directory;
  const std::string meant = directory.File("s");
  // Before there is such a socket, the path may be a ranks' socket of this name.
  EXPECT_OK(CheckRanksSocket(meant + ".admin"));
  const UniqueFd ranks = ListenForTest(meant, SOCK_STREAM);
  EXPECT_OK(CheckRanksSocket(meant));
  for (const std::string ending : {"admin", "descriptors"}) {
    const UniqueFd given = ListenForTest(meant + "." + ending, SOCK_STREAM);
    const auto refusal = StatusIs(absl::StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr(meant + "." + ending + " is the daemon's socket"),
                                        HasSubstr("its socket for ranks, " + meant)));
    EXPECT_THAT(CheckRanksSocket(meant + "." + ending), refusal);
    EXPECT_THAT(ConnectToRanksSocket({.path = meant + "." + ending}, absl::InfiniteFuture()),
                refusal);
  }
}

TEST(SocketConnectTest, TellsWhomADaemonServes) {
  EXPECT_OK(CheckServed("/run/s", /*daemon_uid=*/7, /*own_uid=*/0));
  EXPECT_OK(CheckServed("/run/s", /*daemon_uid=*/7, /*own_uid=*/7));
  EXPECT_THAT(CheckServed("/run/s", /*daemon_uid=*/7, /*own_uid=*/1000),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("/run/s"), HasSubstr("only root and its own user"),
                             HasSubstr("uid 7"), HasSubstr("uid 1000"))));
  // The daemon's user is asked of the socket.
  const TemporaryDirectoryForTest directory;
  const UniqueFd listener = ListenForTest(directory.File("s"), SOCK_STREAM);
  ASSERT_OK_AND_ASSIGN(
      const UniqueFd connected,
      ConnectUnixSocket({.path = directory.File("s")}, SOCK_STREAM, absl::InfiniteFuture()));
  EXPECT_OK(CheckServed(directory.File("s"), connected.get()));
}

TEST(SocketConnectTest, SendsNothingToAStrangerWhoListens) {
  if (getuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  const TemporaryDirectoryForTest directory;
  const DaemonSocket daemon_socket = {.path = directory.File("s")};
  const UniqueFd stranger = ListenForTestAs(kStranger, daemon_socket.path, SOCK_STREAM);
  const auto refusal =
      StatusIs(absl::StatusCode::kUnauthenticated,
               AllOf(HasSubstr(daemon_socket.path + ": uid 4711"), HasSubstr("own user (uid 0)"),
                     HasSubstr("FORESTAGE_DAEMON_USER=4711")));
  EXPECT_THAT(ConnectUnixSocket(daemon_socket, SOCK_STREAM, absl::InfiniteFuture()), refusal);
  EXPECT_EQ(ReceiveAllForTest(stranger), "");
  EXPECT_THAT(ConnectToRanksSocket(daemon_socket, absl::InfiniteFuture()), refusal);
  EXPECT_EQ(ReceiveAllForTest(stranger), "");
  // Unless he is the one that was named.
  EXPECT_OK(ConnectToRanksSocket({.path = daemon_socket.path, .daemon_user = "4711"},
                                 absl::InfiniteFuture()));
}

TEST(SocketConnectTest, WaitsForASocketThatComesLate) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  absl::StatusOr<UniqueFd> connected = absl::UnknownError("not tried");
  std::thread client([&] {
    connected = ConnectUnixSocket({.path = path}, SOCK_SEQPACKET, absl::InfiniteFuture());
  });
  const UniqueFd listener = ListenForTest(path, SOCK_SEQPACKET);
  const UniqueFd accepted = AcceptForTest(listener);
  client.join();
  ASSERT_OK(connected);
  WriteForTest(*connected, "x");
  char byte = 0;
  EXPECT_EQ(recv(accepted.get(), &byte, 1, 0), 1);
}

}  // namespace
}  // namespace forestage
