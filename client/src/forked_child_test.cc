// What is left of a session in a forked child, and that the parent's goes on; the real daemon.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/processes_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "forestage/session.h"

// Asked by the leak checker of a sanitizer when a process exits: in a child it sees none of the
// parent's threads, and takes what only they hold for lost.
static bool g_in_child = false;
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return g_in_child ? 1 : 0; }

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Nothing takes nearly as long; what does hangs.
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr unsigned kPatienceSeconds = 60;

// Runs in the child, and writes what is wrong; nothing when all is well.
using ChildBody = std::function<std::string()>;

std::string WhatIsWrong(absl::string_view what, bool right) {
  return right ? "" : absl::StrCat(what, "; ");
}

bool IsRefused(absl::string_view what, const absl::Status& status, std::string& wrong) {
  const bool refused =
      absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "forked child");
  if (!refused) absl::StrAppend(&wrong, what, ": ", status.ToString(), "; ");
  return refused;
}

enum class Exit { kAtOnce, kOrdinarily };

// The child's words; says so when it crashed or hung.
std::string RunInChild(const ChildBody& body, Exit how = Exit::kAtOnce) {
  int output[2] = {-1, -1};
  EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    g_in_child = true;
    alarm(kPatienceSeconds);
    const std::string wrong = body();
    (void)!write(output[1], wrong.data(), wrong.size());
    if (how == Exit::kAtOnce) _exit(0);
    exit(0);
  }
  close(output[1]);
  std::string words;
  char buffer[512];
  for (ssize_t count; (count = read(output[0], buffer, sizeof(buffer))) > 0;) {
    words.append(buffer, static_cast<size_t>(count));
  }
  close(output[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (status != 0) absl::StrAppend(&words, "the child ended with wait status ", status);
  return words;
}

// Names of the descriptors that a program has which this process executes.
std::set<std::string> InheritedByPrograms() {
  FILE* pipe = popen("exec ls /proc/self/fd", "re");
  std::string text(4096, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0);
  return absl::StrSplit(text, '\n');
}

class ForkedChildTest : public ::testing::Test {
 protected:
  ForkedChildTest() : daemon_(StartDaemonForTest(sockets_.File("s"), {"--extent-size", "64KiB"})) {}

  SessionOptions Options() const {
    SessionOptions options;
    options.socket_path = sockets_.File("s");
    options.daemon_wait = kPatience;
    return options;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options) const {
    return Session::Open(checkpoint_.directory(), options);
  }
  std::string WrongBytes(const Session& session) const {
    for (const auto& [name, bytes] : checkpoint_.tensors()) {
      const absl::StatusOr<Slice> slice = session.GetSlice(name);
      if (!slice.ok()) return slice.status().ToString();
      const absl::StatusOr<SliceView> view = slice->View();
      if (!view.ok()) return view.status().ToString();
      if (view->bytes() != absl::MakeConstSpan(bytes)) return absl::StrCat("wrong bytes: ", name);
    }
    return "";
  }
  // The daemon serves it: its answer is asked for now.
  void ExpectServed(const Session& session) const {
    EXPECT_OK(session.WaitUntilStaged(absl::Now() + kPatience, nullptr));
    EXPECT_EQ(WrongBytes(session), "");
    EXPECT_EQ(session.decision().effective, Policy::kRankStripedReadAhead)
        << session.decision().reason;
  }
  // A session that a child opens: it loads by itself, without waiting for anybody.
  std::string LoadsNativelyAndSaysWhy() const {
    const absl::StatusOr<std::unique_ptr<Session>> session = Open(Options());
    if (!session.ok()) return session.status().ToString();
    const Decision decision = (*session)->decision();
    return absl::StrCat(
        WhatIsWrong(decision.reason, decision.effective == Policy::kNative &&
                                         absl::StrContains(decision.reason, "forked")),
        WrongBytes(**session));
  }

  const CheckpointForTest checkpoint_ = CheckpointForTest({});
  const TemporaryDirectoryForTest sockets_;
  const std::unique_ptr<ProcessForTest> daemon_;
};

TEST_F(ForkedChildTest, IsRefusedByNameInEveryCall) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0));
  EXPECT_EQ(RunInChild([&] {
              std::string wrong;
              std::vector<std::byte> copy(slice.bytes());
              IsRefused("GetSlice(name)", session->GetSlice("layer.0.0").status(), wrong);
              IsRefused("GetSlice(index)", session->GetSlice(0).status(), wrong);
              IsRefused("View", slice.View().status(), wrong);
              IsRefused("CopyTo", slice.CopyTo(absl::MakeSpan(copy)), wrong);
              IsRefused("GetStagingStatus",
                        session->GetStagingStatus(absl::InfiniteFuture()).status(), wrong);
              IsRefused("WaitUntilStaged",
                        session->WaitUntilStaged(absl::InfiniteFuture(), nullptr).status(), wrong);
              const Decision decision = session->decision();
              wrong += WhatIsWrong(decision.reason,
                                   decision.effective == Policy::kNative &&
                                       absl::StrContains(decision.reason, "forked child"));
              session->MarkConsumed(0);
              session->Close();
              return wrong;
            }),
            "");
  ExpectServed(*session);
}

TEST_F(ForkedChildTest, KeepsItsCatalogAndItsViews) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("layer.0.0"));
  ASSERT_OK_AND_ASSIGN(const SliceView view, slice.View());
  EXPECT_EQ(RunInChild([&] {
              const std::shared_ptr<const Catalog> catalog = session->catalog();
              const std::optional<size_t> index = catalog->Find("layer.0.0");
              const auto& bytes = checkpoint_.tensors().at("layer.0.0");
              const bool known =
                  index.has_value() && catalog->tensor(*index).bytes() == bytes.size();
              session.reset();
              return absl::StrCat(
                  WhatIsWrong("the catalog",
                              known && catalog->tensor(*index).name == "layer.0.0" &&
                                  catalog->Alphabetical().size() == catalog->tensor_count()),
                  WhatIsWrong("the view", view.bytes() == absl::MakeConstSpan(bytes)));
            }),
            "");
  ExpectServed(*session);
}

TEST_F(ForkedChildTest, DoesNotEndTheParentsSessionWhenItExits) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  const auto slice = std::make_unique<Slice>(*session->GetSlice(0));
  for (const Exit how : {Exit::kAtOnce, Exit::kOrdinarily}) {
    EXPECT_EQ(RunInChild(
                  [&] {
                    session.reset();
                    *slice = *std::make_unique<Slice>(*slice);
                    return std::string();
                  },
                  how),
              "");
    // The child destroys nothing of it.
    EXPECT_EQ(RunInChild([] { return std::string(); }, how), "");
    ExpectServed(*session);
  }
}

TEST_F(ForkedChildTest, OpensASessionOfItsOwnNativelyAtOnce) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  const absl::Time begun = absl::Now();
  EXPECT_EQ(RunInChild([&] { return LoadsNativelyAndSaysWhy(); }, Exit::kOrdinarily), "");
  // It would wait so long for the daemon's first answer.
  EXPECT_LT(absl::Now() - begun, kPatience);
  // Also when the parent's has ended.
  session.reset();
  EXPECT_EQ(RunInChild([&] { return LoadsNativelyAndSaysWhy(); }, Exit::kOrdinarily), "");
  ASSERT_OK_AND_ASSIGN(session, Open(Options()));
  ExpectServed(*session);
}

TEST_F(ForkedChildTest, IsServedWhenItsParentHadNoSessionBefore) {
  // In a process of its own, as the one of this test has had sessions already.
  const auto rank = std::make_unique<ProcessForTest>(
      std::vector<std::string>{FORESTAGE_RANK, checkpoint_.directory(), sockets_.File("s"), "group",
                               "0", "1", "eager", "60000", "in-a-child"});
  EXPECT_THAT(rank->ReadLine(), HasSubstr("open rank_striped_read_ahead"));
  EXPECT_EQ(rank->ReadLine(), "loaded rank_striped_read_ahead 0");
  rank->CloseInput();
  EXPECT_EQ(rank->Wait(), 0);
}

TEST_F(ForkedChildTest, OfAnotherThreadsOpenHarmsNobody) {
  absl::Notification opening;
  absl::Notification forked;
  SessionOptions options = Options();
  options.choose_demand = [&](const Catalog& catalog) {
    opening.Notify();
    forked.WaitForNotification();
    std::vector<ChosenSlice> all(catalog.tensor_count());
    for (size_t i = 0; i < all.size(); ++i) all[i].tensor_index = i;
    return all;
  };
  absl::StatusOr<std::unique_ptr<Session>> session = absl::UnknownError("not opened");
  std::thread rank([&] { session = Open(options); });
  opening.WaitForNotification();
  EXPECT_EQ(RunInChild([&] { return LoadsNativelyAndSaysWhy(); }, Exit::kAtOnce), "");
  forked.Notify();
  rank.join();
  ASSERT_OK(session);
  ExpectServed(**session);
}

TEST_F(ForkedChildTest, ForkedInsideOpenIsRefusedThereAndTheParentIsServed) {
  bool in_child = false;
  SessionOptions options = Options();
  int output[2] = {-1, -1};
  ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
  pid_t child = -1;
  options.choose_demand = [&](const Catalog& catalog) {
    child = fork();
    in_child = child == 0;
    std::vector<ChosenSlice> all(catalog.tensor_count());
    for (size_t i = 0; i < all.size(); ++i) all[i].tensor_index = i;
    return all;
  };
  const absl::StatusOr<std::unique_ptr<Session>> session = Open(options);
  if (in_child) {
    alarm(kPatienceSeconds);
    std::string wrong;
    IsRefused("Open", session.status(), wrong);
    (void)!write(output[1], wrong.data(), wrong.size());
    _exit(wrong.empty() ? 0 : 1);
  }
  close(output[1]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  char wrong[512] = {};
  (void)!read(output[0], wrong, sizeof(wrong) - 1);
  close(output[0]);
  EXPECT_EQ(status, 0) << wrong;
  ASSERT_OK(session);
  ExpectServed(**session);
}

TEST_F(ForkedChildTest, LeavesNoDescriptorToWhatItExecutes) {
  const std::set<std::string> before = InheritedByPrograms();
  std::set<std::string> opening;
  SessionOptions options = Options();
  options.choose_demand = [&](const Catalog&) {
    opening = InheritedByPrograms();
    return std::vector<ChosenSlice>{{.tensor_index = 0}};
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  EXPECT_EQ(opening, before);
  EXPECT_EQ(InheritedByPrograms(), before);
  EXPECT_EQ(WrongBytes(*session), "");
  EXPECT_EQ(InheritedByPrograms(), before);
}

}  // namespace
}  // namespace forestage
