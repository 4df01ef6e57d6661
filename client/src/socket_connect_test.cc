#include "client/src/socket_connect.h"

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

TEST(SocketConnectTest, SaysWhatIsWrong) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  EXPECT_THAT(ConnectUnixSocket(path, SOCK_STREAM, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  { const UniqueFd listener = ListenForTest(path, SOCK_STREAM); }
  EXPECT_THAT(ConnectUnixSocket(path, SOCK_STREAM, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ECONNREFUSED")));
  const std::string long_path = directory.File(std::string(108, 'x'));
  EXPECT_THAT(ConnectUnixSocket(long_path, SOCK_STREAM, absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107 bytes")));
}

TEST(SocketConnectTest, SaysWhatToDoForEveryWayNotToReachADaemon) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  const auto connect = [](const std::string& to) {
    return ConnectToRanksSocket(to, absl::InfinitePast()).status();
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
    EXPECT_THAT(ConnectToRanksSocket(meant + "." + ending, absl::InfiniteFuture()), refusal);
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
  ASSERT_OK_AND_ASSIGN(const UniqueFd connected,
                       ConnectUnixSocket(directory.File("s"), SOCK_STREAM, absl::InfiniteFuture()));
  EXPECT_OK(CheckServed(directory.File("s"), connected.get()));
}

TEST(SocketConnectTest, WaitsForASocketThatComesLate) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.File("s");
  absl::StatusOr<UniqueFd> connected = absl::UnknownError("not tried");
  std::thread client(
      [&] { connected = ConnectUnixSocket(path, SOCK_SEQPACKET, absl::InfiniteFuture()); });
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
