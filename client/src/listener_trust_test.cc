#include "client/src/listener_trust.h"

#include <pwd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/src/unix_listener_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kOwn = 1000;
constexpr uid_t kStranger = 4711;
constexpr uid_t kOverflow = 65534;

TEST(ListenerTrustTest, RootAndTheOwnUserAreTrustedAndNobodyElse) {
  EXPECT_OK(CheckTrusted({.path = "/run/s"}, {.uid = 0, .own_uid = kOwn}));
  EXPECT_OK(CheckTrusted({.path = "/run/s"}, {.uid = kOwn, .own_uid = kOwn}));
  // Root does not trust everybody either: its files are worth most.
  for (const uid_t own : {uid_t{0}, kOwn}) {
    EXPECT_THAT(CheckTrusted({.path = "/run/s"}, {.uid = kStranger, .own_uid = own}),
                StatusIs(absl::StatusCode::kUnauthenticated,
                         AllOf(HasSubstr("/run/s: uid 4711 (without a name here) listens there"),
                               HasSubstr(absl::StrCat("own user (uid ", own, ")")),
                               HasSubstr("FORESTAGE_DAEMON_USER=4711"),
                               HasSubstr("a directory that only root can write"))));
  }
}

TEST(ListenerTrustTest, TheDaemonsUserIsNamedByNameOrNumber) {
  const Listener stranger = {.uid = kStranger, .own_uid = kOwn};
  EXPECT_OK(CheckTrusted({.path = "/run/s", .daemon_user = "4711"}, stranger));
  EXPECT_THAT(CheckTrusted({.path = "/run/s", .daemon_user = "4712"}, stranger),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("uid 4711"), HasSubstr("'4712' (uid 4712)"))));
  // Beside root and the own user, not instead of them.
  EXPECT_OK(CheckTrusted({.path = "/run/s", .daemon_user = "4711"}, {.own_uid = kOwn}));
  EXPECT_OK(CheckTrusted({.path = "/run/s", .daemon_user = "4711"}, {.uid = 7, .own_uid = 7}));

  // A user that every system has, and whose number is not asked for here otherwise.
  const passwd* daemon = getpwnam("daemon");
  ASSERT_NE(daemon, nullptr);
  const Listener named = {.uid = daemon->pw_uid, .own_uid = kOwn};
  EXPECT_OK(CheckTrusted({.path = "/run/s", .daemon_user = "daemon"}, named));
  EXPECT_THAT(CheckTrusted({.path = "/run/s"}, named),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       HasSubstr(absl::StrCat("uid ", daemon->pw_uid, " (daemon) listens"))));
  EXPECT_THAT(CheckTrusted({.path = "/run/s", .daemon_user = "daemon"}, stranger),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       HasSubstr(absl::StrCat("'daemon' (uid ", daemon->pw_uid, ")"))));
}

TEST(ListenerTrustTest, ADaemonsUserThatIsNoneTrustsNobody) {
  for (const std::string user :
       {"no-such-user", "-1", "4294967295", "4294967296", "0x1267", " 4711", "4711 ", "+4711"}) {
    for (const uid_t uid : {kStranger, static_cast<uid_t>(-1)}) {
      EXPECT_THAT(
          CheckTrusted({.path = "/run/s", .daemon_user = user}, {.uid = uid, .own_uid = kOwn}),
          StatusIs(absl::StatusCode::kUnauthenticated,
                   HasSubstr(absl::StrCat("'", user, "' (not known here: give the number)"))))
          << user;
    }
  }
}

TEST(ListenerTrustTest, WhoHasNoNumberInThisUserNamespaceIsNotTrustedUnlessAllOfThemAre) {
  Listener listener = {.uid = kOverflow, .own_uid = kOwn, .all_users_have_numbers = false};
  const auto refusal =
      StatusIs(absl::StatusCode::kUnauthenticated,
               AllOf(HasSubstr("user namespace"), HasSubstr("FORESTAGE_DAEMON_USER=65534"),
                     HasSubstr("only root can write"), Not(HasSubstr("nobody) listens"))));
  EXPECT_THAT(CheckTrusted({.path = "/run/s"}, listener), refusal);
  // Nor where this process has none itself: two of them are not one.
  listener.own_uid = kOverflow;
  EXPECT_THAT(CheckTrusted({.path = "/run/s"}, listener), refusal);
  EXPECT_THAT(CheckTrusted({.path = "/run/s", .daemon_user = "4711"}, listener), refusal);
  EXPECT_OK(CheckTrusted({.path = "/run/s", .daemon_user = "65534"}, listener));

  // Where every user has a number, this one is a user like others.
  listener.all_users_have_numbers = true;
  EXPECT_OK(CheckTrusted({.path = "/run/s"}, listener));
  listener.own_uid = kOwn;
  EXPECT_THAT(CheckTrusted({.path = "/run/s"}, listener),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("uid 65534"), Not(HasSubstr("user namespace")))));
}

TEST(ListenerTrustTest, TheKernelIsAskedWhoListens) {
  const TemporaryDirectoryForTest directory;
  const DaemonSocket socket = {.path = directory.File("s")};
  const UniqueFd listener = ListenForTest(socket.path, SOCK_STREAM);
  const UniqueFd own = ConnectForTest(socket.path, SOCK_STREAM);
  EXPECT_OK(CheckListener(socket, own.get()));
  // No socket: nobody says who it is.
  const UniqueFd file(dup(STDERR_FILENO));
  EXPECT_THAT(CheckListener(socket, file.get()),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr(socket.path), HasSubstr("does not say who listens"))));
}

}  // namespace
}  // namespace forestage
