// The built program as people and scripts run it: exit codes, standard output, files.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/digest_line.h"
#include "client/cli/output.h"
#include "client/cli/rank_plan.h"
#include "client/src/unix_listener_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"
#include "common/units.h"

extern char** environ;

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct RunOutcome {
  int exit_code = -1;
  std::string out;
  std::string err;
  Json json() const { return Json::parse(out, nullptr, /*allow_exceptions=*/false); }
};

class ProgramTest : public ::testing::Test {
 protected:
  RunOutcome Forestage(std::vector<std::string> arguments) {
    return ForestageInto(directory_.File("stdout"), std::move(arguments));
  }

  // With this file as standard output.
  RunOutcome ForestageInto(const std::string& out, std::vector<std::string> arguments) {
    const std::string err = directory_.File("stderr");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), flags, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0600);
    arguments.insert(arguments.begin(), FORESTAGE_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, FORESTAGE_PROGRAM, &actions, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    return {.exit_code = WEXITSTATUS(status),
            .out = std::filesystem::is_regular_file(out) ? ReadFile(out) : "",
            .err = ReadFile(err)};
  }

  std::string MakeDemo(const std::string& architecture) {
    const std::string path = directory_.File("demo");
    const RunOutcome demo =
        Forestage({"demo", path, "--size", "3MiB", "--shards", "3", "--arch", architecture});
    EXPECT_EQ(demo.exit_code, 0) << demo.err;
    return path;
  }

  TemporaryDirectoryForTest directory_;
};

// What `load --share rows --digests` has to write, from the files alone.
std::string ExpectedDigests(const std::string& directory, const Json& listing, uint32_t ranks) {
  std::string lines;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const Json& shard : listing["shards"]) {
      const std::string name = shard["name"];
      const std::string file = ReadFile(directory + "/" + name);
      std::map<std::string, const Json*> by_name;
      for (const Json& tensor : listing["tensors"]) {
        if (tensor["shard"] == name) by_name[tensor["name"]] = &tensor;
      }
      for (const auto& [tensor_name, tensor] : by_name) {
        const uint64_t rows = (*tensor)["shape"][0];
        const uint64_t begin = (*tensor)["begin"];
        const uint64_t row_bytes = ((*tensor)["end"].get<uint64_t>() - begin) / rows;
        const uint64_t share = (rows + ranks - 1) / ranks;
        const uint64_t first = std::min(rows, rank * share);
        const uint64_t last = std::min(rows, first + share);
        lines +=
            DigestLine(rank, tensor_name,
                       {reinterpret_cast<const std::byte*>(file.data()) + begin + first * row_bytes,
                        (last - first) * row_bytes}) +
            "\n";
      }
    }
  }
  return lines;
}

TEST_F(ProgramTest, ListsWhatDemoWrote) {
  const std::string demo = MakeDemo("mixtral");
  const RunOutcome ls = Forestage({"ls", demo, "--json"});
  ASSERT_EQ(ls.exit_code, 0) << ls.err;
  const Json listing = ls.json();
  EXPECT_EQ(listing["shards"].size(), 3u);
  EXPECT_EQ(listing["shards"][2]["name"], "model-00003-of-00003.safetensors");
  EXPECT_EQ(listing["tensors"].size(), 34u);
  EXPECT_EQ(listing["ignored"].size(), 0u);
  const RunOutcome text = Forestage({"ls", demo, "model.layers.0.self_attn."});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("model.layers.0.self_attn.q_proj.weight"),
                              HasSubstr("model.safetensors.index.json")));
}

TEST_F(ProgramTest, RanksLoadVerifyAndDigestTheirRows) {
  const std::string demo = MakeDemo("llama");
  const Json listing = Forestage({"ls", "--json", demo}).json();
  const std::string digests = directory_.File("digests");
  const RunOutcome load = Forestage({"load", demo, "--no-daemon", "--ranks", "3", "--share", "rows",
                                     "--verify", "--digests", digests, "--json"});
  ASSERT_EQ(load.exit_code, 0) << load.err;
  const Json report = load.json();
  ASSERT_EQ(report["ranks"].size(), 3u);
  uint64_t bytes = 0;
  for (const Json& rank : report["ranks"]) {
    EXPECT_EQ(rank["requested"], "auto");
    EXPECT_EQ(rank["effective"], "native");
    EXPECT_EQ(rank["activated"], false);
    EXPECT_NE(rank["reason"], "");
    EXPECT_EQ(rank["verified"], true);
    EXPECT_EQ(rank["mismatched"], 0);
    EXPECT_LE(rank["first_tensor_seconds"], rank["seconds"]);
    bytes += rank["bytes"].get<uint64_t>();
  }
  uint64_t tensor_bytes = 0;
  for (const Json& tensor : listing["tensors"])
    tensor_bytes += tensor["end"].get<uint64_t>() - tensor["begin"].get<uint64_t>();
  EXPECT_EQ(bytes, tensor_bytes);
  EXPECT_EQ(report["node"]["bytes_needed"], listing["total_bytes"]);
  EXPECT_EQ(report["node"]["bytes_read"], 0);
  EXPECT_EQ(ReadFile(digests), ExpectedDigests(demo, listing, 3));
}

TEST_F(ProgramTest, RanksCopyTheirRowsIntoMemoryOfTheirOwn) {
  const std::string demo = MakeDemo("llama");
  const Json listing = Forestage({"ls", "--json", demo}).json();
  const std::string digests = directory_.File("digests");
  const RunOutcome load =
      Forestage({"load", demo, "--no-daemon", "--ranks", "2", "--share", "rows", "--own",
                 "--together", "--verify", "--digests", digests, "--json"});
  ASSERT_EQ(load.exit_code, 0) << load.err;
  const Json report = load.json();
  ASSERT_EQ(report["ranks"].size(), 2u);
  for (const Json& rank : report["ranks"]) EXPECT_EQ(rank["verified"], true);
  EXPECT_EQ(ReadFile(digests), ExpectedDigests(demo, listing, 2));
}

TEST_F(ProgramTest, EveryRankLoadsEverythingByDefault) {
  const std::string demo = MakeDemo("llama");
  const RunOutcome load = Forestage({"load", demo, "--no-daemon", "--ranks", "2"});
  EXPECT_EQ(load.exit_code, 0) << load.err;
  EXPECT_THAT(load.out, AllOf(HasSubstr("native"), HasSubstr("not asked"), HasSubstr("node:")));
}

TEST_F(ProgramTest, ReportsADamagedCheckpointOncePerRankInJsonAndOnceInWords) {
  const std::string demo = MakeDemo("llama");
  std::filesystem::resize_file(demo + "/model-00002-of-00003.safetensors", 1000);
  const RunOutcome load = Forestage({"load", demo, "--no-daemon", "--ranks", "2", "--json"});
  EXPECT_EQ(load.exit_code, 1);
  const Json report = load.json();
  for (const Json& rank : report["ranks"])
    EXPECT_THAT(rank["error"].get<std::string>(), HasSubstr("model-00002-of-00003"));
  EXPECT_THAT(load.err, HasSubstr("ranks 0, 1: "));
  const RunOutcome ls = Forestage({"ls", demo, "--json"});
  EXPECT_EQ(ls.exit_code, 1);
  EXPECT_THAT(ls.json()["error"].get<std::string>(), HasSubstr("model-00002-of-00003"));
}

TEST_F(ProgramTest, DemoLeavesADirectoryThatIsNotEmptyAlone) {
  const std::string demo = MakeDemo("llama");
  const RunOutcome again = Forestage({"demo", demo, "--size", "3MiB"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("--force"));
  const RunOutcome forced = Forestage({"demo", demo, "--size", "2MiB", "--shards", "2", "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(Forestage({"ls", demo, "--json"}).json()["shards"].size(), 2u);
  for (const auto& entry : std::filesystem::directory_iterator(demo))
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
}

TEST_F(ProgramTest, ADemoThatDoesNotFitLeavesNothing) {
  ASSERT_LT(std::filesystem::space(directory_.path()).available, 16 * kTiB);
  const RunOutcome demo = Forestage({"demo", directory_.File("new/deep"), "--size", "16TiB"});
  EXPECT_EQ(demo.exit_code, 1);
  EXPECT_THAT(demo.err, HasSubstr("are needed"));
  EXPECT_FALSE(std::filesystem::exists(directory_.File("new")));
}

TEST_F(ProgramTest, TellsWrongUsageFromFailureAndFromAMissingDaemon) {
  const std::string socket = "--socket=" + directory_.File("no.sock");
  EXPECT_EQ(Forestage({}).exit_code, 2);
  const RunOutcome bogus = Forestage({"bogus"});
  EXPECT_EQ(bogus.exit_code, 2);
  EXPECT_THAT(bogus.err, HasSubstr("'bogus' is no command"));
  EXPECT_THAT(Forestage({"--bogus"}).err, HasSubstr("'--bogus' is no option"));
  EXPECT_EQ(Forestage({"load", directory_.path()}).exit_code, 2);
  EXPECT_EQ(Forestage({"load", directory_.path(), "--ranks", "0"}).exit_code, 2);
  EXPECT_EQ(Forestage({"load", directory_.path(), "--ranks", "1", "--share", "x"}).exit_code, 2);
  EXPECT_EQ(Forestage({"demo", directory_.File("d"), "--size", "big"}).exit_code, 2);
  EXPECT_EQ(Forestage({"status", "--no-daemon"}).exit_code, 2);
  EXPECT_EQ(Forestage({"ls", directory_.File("none")}).exit_code, 1);
  EXPECT_EQ(Forestage({"status", socket}).exit_code, 3);
  const RunOutcome health = Forestage({"health", socket, "--json"});
  EXPECT_EQ(health.exit_code, 3);
  EXPECT_THAT(health.json()["error"].get<std::string>(), HasSubstr("no.sock"));
  const RunOutcome usage = Forestage({"load", "--json"});
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_TRUE(usage.json().contains("error"));
}

TEST_F(ProgramTest, NumbersThatAreNoneNameWhatIsAllowed) {
  for (const std::string number :
       {"0", "-1", "257", "99999999999999999999", "2.0", "0x2", "two", ""}) {
    const RunOutcome load = Forestage({"load", directory_.path(), "--ranks=" + number});
    EXPECT_EQ(load.exit_code, 2) << number;
    EXPECT_THAT(load.err, HasSubstr("--ranks")) << number;
    const RunOutcome demo = Forestage(
        {"demo", directory_.File("d"), "--shards=" + (number == "257" ? "16385" : number)});
    EXPECT_EQ(demo.exit_code, 2) << number;
    if (number.empty()) continue;
    EXPECT_THAT(load.err, HasSubstr("'" + number + "' is not a number from 1 to 256;"));
    EXPECT_THAT(demo.err, HasSubstr("' is not a number from 1 to 16384;"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.File("d")));
}

TEST_F(ProgramTest, AnEmptyArgumentIsOneErrorThatSaysSoAndNothingIsDone) {
  const std::string directory = directory_.path();
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"ls", ""}, "DIR"},
      {{"doctor", ""}, "DIR"},
      {{"stage", "--once", ""}, "DIR"},
      {{"load", "", "--ranks", "1"}, "DIR"},
      {{"load", "", "--ranks", "2"}, "DIR"},
      {{"load", "--ranks", "2", ""}, "DIR"},
      {{"demo", ""}, "DIR"},
      {{"ls", "--socket", "", directory}, "--socket"},
      {{"--socket", "", "ls", directory}, "--socket"},
      {{"status", "--socket="}, "--socket"},
      {{"ls", "--socket=", directory}, "--socket"},
      {{"status", "--admin-socket", ""}, "--admin-socket"},
      {{"load", directory, "--ranks", "1", "--group", ""}, "--group"},
      {{"load", directory, "--ranks", "1", "--digests", ""}, "--digests"},
  };
  for (const auto& [arguments, name] : cases) {
    const RunOutcome outcome = Forestage(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.err, "forestage: " + name +
                               ": the argument is empty (is a variable not set?); see forestage "
                               "--help\n");
    EXPECT_EQ(outcome.out, "");
  }
  const std::string demo = MakeDemo("llama");
  EXPECT_EQ(Forestage({"ls", demo, ""}).out, Forestage({"ls", demo}).out);
}

TEST_F(ProgramTest, ArgumentsThatAreNotExpectedAreNamedInTheirOrder) {
  EXPECT_THAT(Forestage({"ls", "a", "b", "--bogus", "c"}).err,
              HasSubstr("not expected here: --bogus c;"));
  EXPECT_THAT(Forestage({"ls", "a", "--bogus", "--worse"}).err,
              HasSubstr("not expected here: --bogus --worse;"));
}

TEST_F(ProgramTest, OutputThatIsLostIsAFailure) {
  const std::string demo = MakeDemo("llama");
  const std::vector<std::vector<std::string>> commands = {
      {"ls", demo}, {"ls", demo, "--json"}, {"load", demo, "--no-daemon", "--ranks", "1", "--json"},
      {"version"},  {"--version"},          {"ls", "--help"}};
  for (const std::vector<std::string>& command : commands) {
    const RunOutcome run = ForestageInto("/dev/full", command);
    EXPECT_EQ(run.exit_code, 1) << command[0];
    EXPECT_THAT(run.err, HasSubstr("standard output: No space left on device")) << command[0];
  }
  // What failed anyway keeps its exit code.
  EXPECT_EQ(ForestageInto("/dev/full", {"ls", "--json"}).exit_code, 2);
}

TEST_F(ProgramTest, ADaemonThatClosesTheConnectionIsNotAMissingOne) {
  const std::string socket = directory_.File("closing.sock");
  const UniqueFd listener = ListenForTest(socket, SOCK_STREAM);
  // Ends when the listener is shut down.
  std::thread closing([&] {
    while (true) {
      const UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
    }
  });
  const std::string demo = MakeDemo("llama");
  const std::vector<std::vector<std::string>> commands = {{"health", "--socket", socket},
                                                          {"status", "--admin-socket", socket},
                                                          {"stage", demo, "--socket", socket}};
  for (const std::vector<std::string>& command : commands) {
    const RunOutcome run = Forestage(command);
    EXPECT_EQ(run.exit_code, 1) << command[0] << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr(socket)) << command[0];
  }
  shutdown(listener.get(), SHUT_RDWR);
  closing.join();
}

TEST_F(ProgramTest, ASocketPathThatNobodyCanHaveIsNamedInOneMessage) {
  const std::string socket = directory_.File(std::string(200, 's'));
  const RunOutcome health = Forestage({"health", "--socket", socket});
  EXPECT_EQ(health.exit_code, 1);
  EXPECT_THAT(health.err, AllOf(StartsWith("forestage: "), HasSubstr("at most 107 bytes")));
  EXPECT_EQ(std::count(health.err.begin(), health.err.end(), '\n'), 1) << health.err;
}

TEST_F(ProgramTest, StageWithoutADaemonStagesNothingAndSaysSo) {
  const std::string demo = MakeDemo("llama");
  const RunOutcome stage =
      Forestage({"stage", demo, "--once", "--socket", directory_.File("no.sock")});
  EXPECT_EQ(stage.exit_code, 3);
  EXPECT_THAT(stage.err, HasSubstr("no.sock"));
}

TEST_F(ProgramTest, NamesTheSocketThatWasMeantWhereAnotherOneOfTheDaemonIsGiven) {
  const std::string meant = directory_.File("d.sock");
  const std::string demo = MakeDemo("llama");
  const UniqueFd ranks = ListenForTest(meant, SOCK_STREAM);
  const UniqueFd administrators = ListenForTest(meant + ".admin", SOCK_STREAM);
  const UniqueFd descriptors = ListenForTest(meant + ".descriptors", SOCK_SEQPACKET);
  for (const std::string& given : {meant + ".admin", meant + ".descriptors"}) {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"health"}, {"status"}, {"stage", demo}, {"doctor", demo}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--socket", given});
      const RunOutcome run = Forestage(arguments);
      EXPECT_EQ(run.exit_code, 2) << command[0];
      EXPECT_THAT(run.err, AllOf(HasSubstr(given + " is the daemon's socket for "),
                                 HasSubstr("its socket for ranks, " + meant + "\n")));
    }
    // A load goes on without, and says why.
    const RunOutcome load = Forestage({"load", demo, "--ranks", "1", "--socket", given, "--json"});
    EXPECT_EQ(load.exit_code, 0);
    EXPECT_THAT(load.json()["ranks"][0]["reason"].get<std::string>(),
                HasSubstr("its socket for ranks, " + meant));
  }
}

TEST_F(ProgramTest, EveryCommandExplainsItself) {
  for (const char* command : {"ls", "stage", "load", "status", "health", "demo", "version"}) {
    const RunOutcome help = Forestage({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, AllOf(HasSubstr("Examples:"), HasSubstr("Exit codes:"),
                                HasSubstr("--socket"), HasSubstr("--json")))
        << command;
  }
  const RunOutcome help = Forestage({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.out.find("\n  rank "), std::string::npos);
  EXPECT_EQ(Forestage({"--version"}).out, Forestage({"version"}).out);
}

}  // namespace
}  // namespace forestage
