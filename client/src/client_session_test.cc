// The public session against sockets behind which there is no daemon: native in bounded time.
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/unix_listener_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "forestage/session.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    options_.socket_path = sockets_.File("s");
    options_.daemon_wait = absl::ZeroDuration();
  }

  // Opens, expects a native load with this reason, and every byte.
  void ExpectNativeLoad(const std::string& reason) {
    ASSERT_OK_AND_ASSIGN(auto session, Session::Open(checkpoint_.directory(), options_));
    EXPECT_EQ(session->decision().requested, Policy::kAuto);
    EXPECT_EQ(session->decision().effective, Policy::kNative);
    EXPECT_FALSE(session->decision().activated);
    EXPECT_THAT(session->decision().reason,
                AllOf(HasSubstr(options_.socket_path), HasSubstr(reason)));
    for (const auto& [name, bytes] : checkpoint_.tensors()) {
      ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(name));
      ASSERT_OK_AND_ASSIGN(SliceView view, slice.View());
      EXPECT_TRUE(view.bytes() == absl::MakeConstSpan(bytes)) << name;
    }
  }

  const CheckpointForTest checkpoint_{{}};
  const TemporaryDirectoryForTest sockets_;
  SessionOptions options_;
};

TEST_F(SessionTest, IsNativeWithoutADaemon) { ExpectNativeLoad("start forestaged"); }

TEST_F(SessionTest, TakesTheSocketFromTheEnvironment) {
  options_.socket_path = "";
  setenv("FORESTAGE_SOCKET", sockets_.File("other").c_str(), 1);
  ExpectNativeLoad(sockets_.File("other"));
  unsetenv("FORESTAGE_SOCKET");
}

TEST_F(SessionTest, IsNativeWhenNobodyListens) {
  { const UniqueFd listener = ListenForTest(options_.socket_path, SOCK_STREAM); }
  ExpectNativeLoad("ECONNREFUSED");
}

TEST_F(SessionTest, IsNativeWhenThePathIsTooLong) {
  options_.socket_path = sockets_.File(std::string(120, 'x'));
  ExpectNativeLoad("107 bytes");
}

TEST_F(SessionTest, IsNativeWhenThePeerSpeaksGarbage) {
  const UniqueFd listener = ListenForTest(options_.socket_path, SOCK_STREAM);
  std::thread peer([&] {
    const UniqueFd connection = AcceptForTest(listener);
    WriteForTest(connection, std::string(4096, 'g'));
    char byte = 0;
    while (recv(connection.get(), &byte, 1, 0) > 0) continue;
  });
  ExpectNativeLoad("did not serve");
  peer.join();
}

TEST_F(SessionTest, IsNativeAndSaysNothingWhenAStrangerListens) {
  if (getuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  const UniqueFd listener = ListenForTestAs(4711, options_.socket_path, SOCK_STREAM);
  ExpectNativeLoad("uid 4711");
  EXPECT_EQ(ReceiveAllForTest(listener), "");
  options_.daemon_user = "4712";
  ExpectNativeLoad("'4712'");
  EXPECT_EQ(ReceiveAllForTest(listener), "");
  // Named, he is spoken to.
  options_.daemon_user = "4711";
  options_.open_timeout = absl::Milliseconds(100);
  ExpectNativeLoad("timed out waiting for its answer");
  EXPECT_NE(ReceiveAllForTest(listener), "");
}

TEST_F(SessionTest, IsNativeWhenThePeerHangsUp) {
  const UniqueFd listener = ListenForTest(options_.socket_path, SOCK_STREAM);
  std::thread peer([&] { const UniqueFd connection = AcceptForTest(listener); });
  ExpectNativeLoad("did not serve");
  peer.join();
}

TEST_F(SessionTest, IsNativeWhenThePeerNeverAnswers) {
  const UniqueFd listener = ListenForTest(options_.socket_path, SOCK_STREAM);
  options_.open_timeout = absl::Milliseconds(100);
  ExpectNativeLoad("timed out waiting for its answer");
}

TEST_F(SessionTest, DoesNothingWhenItIsDestroyedInAForkedChild) {
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(checkpoint_.directory(), options_));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("layer.0.0"));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(session->GetSlice("layer.0.0").status());
    session.reset();
    const bool still_refused = absl::IsFailedPrecondition(slice.View().status());
    _exit(refused && still_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(slice.View());
}

TEST_F(SessionTest, RunsTheExample) {
  const std::string command = absl::StrCat("FORESTAGE_SOCKET=", options_.socket_path, " ",
                                           FORESTAGE_LOAD_ALL, " ", checkpoint_.directory());
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char output[4096] = {};
  const size_t length = fread(output, 1, sizeof(output) - 1, pipe);
  EXPECT_EQ(pclose(pipe), 0);
  unsigned sum = 0;
  for (const auto& [name, bytes] : checkpoint_.tensors()) {
    for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  }
  EXPECT_THAT(std::string(output, length),
              AllOf(HasSubstr(absl::StrCat("6 tensors, ", 6 * 64 * 1024, " bytes, sum of bytes ",
                                           sum, "\n")),
                    HasSubstr("effective native")));
}

}  // namespace
}  // namespace forestage
