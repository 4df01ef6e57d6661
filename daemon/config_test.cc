#include "daemon/config.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/generated_section.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A directory of its own, with a configuration file in it where the test writes one.
class ConfigTest : public ::testing::Test {
 protected:
  std::string file() const { return directory_.File("forestaged.toml"); }
  void WriteFile(const std::string& text) const { std::ofstream(file()) << text; }

  absl::StatusOr<StartRequest> Read(std::vector<std::string> arguments,
                                    std::vector<std::string> environment = {}) const {
    return ReadStartRequest({.arguments = std::move(arguments),
                             .environment = std::move(environment),
                             .config_file_default = file()});
  }

  static EffectiveSetting Find(const StartRequest& request, const std::string& name) {
    const auto found = absl::c_find_if(
        request.settings, [&](const EffectiveSetting& setting) { return setting.name == name; });
    return found == request.settings.end() ? EffectiveSetting{} : *found;
  }

 private:
  const TemporaryDirectoryForTest directory_;
};

TEST_F(ConfigTest, WithoutAnythingGivesTheDefaults) {
  ASSERT_OK_AND_ASSIGN(const StartRequest request, Read({}));
  const Config defaults;
  EXPECT_EQ(request.config.socket_path, defaults.socket_path);
  EXPECT_EQ(request.config.extent_bytes, defaults.extent_bytes);
  EXPECT_EQ(request.config.in_flight_bytes_max, defaults.in_flight_bytes_max);
  EXPECT_EQ(request.config.agreement_timeout, defaults.agreement_timeout);
  EXPECT_FALSE(request.text.has_value());
  EXPECT_THAT(request.warnings, IsEmpty());
  EXPECT_THAT(request.settings, Not(IsEmpty()));
  for (const EffectiveSetting& setting : request.settings) {
    EXPECT_EQ(setting.source, "default") << setting.name;
  }
}

TEST_F(ConfigTest, ReadsEverySettingFromAFlag) {
  ASSERT_OK_AND_ASSIGN(const StartRequest request, Read({"--socket",
                                                         "/tmp/f.sock",
                                                         "--socket-group=render",
                                                         "--socket-mode=0666",
                                                         "--admin-socket=/tmp/a.sock",
                                                         "--metrics-address=none",
                                                         "--reader=threads",
                                                         "--extent-size=64KiB",
                                                         "--lanes-max",
                                                         "3",
                                                         "--in-flight-max",
                                                         "1GiB",
                                                         "--node-in-flight-max=3GiB",
                                                         "--read-bytes-per-second-max",
                                                         "nfs=1GiB,500MiB",
                                                         "--read-order=file",
                                                         "--node-name=node-7",
                                                         "--sessions-max",
                                                         "7",
                                                         "--sessions-per-uid-max=5",
                                                         "--staged-bytes-per-uid-max=48GiB",
                                                         "--memory-headroom=20%",
                                                         "--memory-limit=96GiB",
                                                         "--agreement-timeout",
                                                         "2m",
                                                         "--descriptor-timeout=500ms",
                                                         "--log-level=debug"}));
  EXPECT_EQ(request.config.socket_path, "/tmp/f.sock");
  EXPECT_EQ(request.config.socket_group, "render");
  EXPECT_EQ(request.config.socket_mode, 0666u);
  EXPECT_EQ(request.config.admin_socket_path, "/tmp/a.sock");
  EXPECT_EQ(request.config.metrics_address, "none");
  EXPECT_EQ(request.config.reader, ReaderChoice::kThreads);
  EXPECT_EQ(request.config.extent_bytes, 65536u);
  EXPECT_EQ(request.config.lanes_max, 3u);
  EXPECT_EQ(request.config.in_flight_bytes_max, 1073741824u);
  EXPECT_EQ(request.config.node_in_flight_bytes_max, uint64_t{3} << 30);
  EXPECT_EQ(request.config.read_rate_limits.Of("nfs4"), uint64_t{1} << 30);
  EXPECT_EQ(request.config.read_rate_limits.Of("xfs"), uint64_t{500} << 20);
  EXPECT_EQ(request.config.read_order, ReadOrder::kFile);
  EXPECT_EQ(request.config.node_name, "node-7");
  EXPECT_EQ(request.config.sessions_max, 7u);
  EXPECT_EQ(request.config.memory_headroom.ToString(), "20%");
  EXPECT_EQ(request.config.memory_limit_bytes, uint64_t{96} << 30);
  EXPECT_EQ(request.config.sessions_per_user_max, 5u);
  EXPECT_EQ(request.config.staged_bytes_per_user_max, uint64_t{48} << 30);
  EXPECT_EQ(request.config.agreement_timeout, absl::Minutes(2));
  EXPECT_EQ(request.config.descriptor_timeout, absl::Milliseconds(500));
  EXPECT_EQ(request.config.log_level, "debug");
  for (const EffectiveSetting& setting : request.settings) {
    EXPECT_EQ(setting.source, absl::StrCat("flag --", setting.name));
  }
}

TEST_F(ConfigTest, FlagCountsBeforeEnvironmentBeforeFileBeforeDefault) {
  WriteFile(
      "# a comment\n"
      "lanes-max = 2\n"
      "sessions-max = 20\n"
      "extent-size = \"1MiB\"  # and one here\n");
  ASSERT_OK_AND_ASSIGN(
      const StartRequest request,
      Read({"--lanes-max=4"}, {"FORESTAGED_LANES_MAX=3", "FORESTAGED_SESSIONS_MAX=30", "HOME=/x"}));
  EXPECT_EQ(request.config.lanes_max, 4u);
  EXPECT_EQ(request.config.sessions_max, 30u);
  EXPECT_EQ(request.config.extent_bytes, 1048576u);
  EXPECT_EQ(Find(request, "lanes-max").source, "flag --lanes-max");
  EXPECT_EQ(Find(request, "sessions-max").source, "environment FORESTAGED_SESSIONS_MAX");
  EXPECT_EQ(Find(request, "extent-size").source, absl::StrCat("file ", file(), ", line 4"));
  EXPECT_EQ(Find(request, "reader").source, "default");
}

TEST_F(ConfigTest, WrongValueNamesSettingSourceAndWhatIsAllowed) {
  EXPECT_THAT(Read({"--extent-size=3MiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("extent-size (flag --extent-size) is '3MiB'"),
                             HasSubstr("a power of two from 64KiB to 1GiB"))));
  EXPECT_THAT(Read({"--memory-limit=100G"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("none, or a size such as 100GiB"),
                             HasSubstr("with KiB, MiB, GiB or TiB directly behind it"))));
  EXPECT_THAT(Read({}, {"FORESTAGED_READER=mmap"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("reader (environment FORESTAGED_READER) is 'mmap'"),
                             HasSubstr("auto, io_uring or threads"))));
  WriteFile("log-level = \"loud\"\n");
  EXPECT_THAT(Read({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("log-level (file "), HasSubstr("'loud'"))));
}

TEST_F(ConfigTest, RefusesWhatIsOutsideOfEachSettingsBounds) {
  for (const char* argument : {
           "--socket=run/f.sock",
           "--socket=/run/",
           "--socket=true",
           "--socket-group=two words",
           "--socket-mode=0460",
           "--socket-mode=04660",
           "--socket-mode=0668",
           "--socket-mode=rw",
           "--admin-socket=a.sock",

           "--metrics-address=0.0.0.0:9748",
           "--metrics-address=9748",
           "--metrics-address=off",

           "--reader=Auto",
           "--extent-size=32KiB",
           "--extent-size=2GiB",
           "--extent-size=0",
           "--extent-size=8M",
           "--extent-size=-8MiB",
           "--lanes-max=0",
           "--lanes-max=65",
           "--lanes-max=-1",
           "--lanes-max=1.5",
           "--lanes-max=4294967297",
           "--in-flight-max=1KiB",
           "--read-order=shuffle",
           "--node-name=two words",
           "--read-bytes-per-second-max=0",
           "--read-bytes-per-second-max=fast",
           "--read-bytes-per-second-max=nfs",
           "--read-bytes-per-second-max=1GiB,2GiB",
           "--memory-headroom=91%",
           "--memory-headroom=lots",
           "--memory-limit=50%",
           "--in-flight-max=65GiB",
           "--staged-bytes-per-uid-max=50%",
           "--staged-bytes-per-uid-max=-1",
           "--sessions-max=0",
           "--sessions-max=65537",
           "--sessions-max= 5",
           "--agreement-timeout=60",
           "--agreement-timeout=0s",
           "--agreement-timeout=-5s",
           "--agreement-timeout=inf",
           "--agreement-timeout=61m",
           "--descriptor-timeout=1ms",
           "--log-level=verbose",
           "--log-level=INFO",
       }) {
    EXPECT_THAT(Read({argument}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allowed")))
        << argument;
  }
  EXPECT_THAT(Read({"--reader="}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--reader")));
  EXPECT_THAT(Read({}, {"FORESTAGE_SOCKET="}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FORESTAGE_SOCKET")));
  EXPECT_OK(Read({absl::StrCat("--socket=/", std::string(94, 's'))}));
  EXPECT_FALSE(Read({absl::StrCat("--socket=/", std::string(95, 's'))}).ok());
}

TEST_F(ConfigTest, NamesAllWrongSettingsAtOnceAlsoOverriddenOnes) {
  WriteFile("extent-size = 5\n");
  EXPECT_THAT(Read({"--extent-size=1MiB", "--lanes-max=0"}, {"FORESTAGED_SESSIONS_MAX=x"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("extent-size (file "), HasSubstr("lanes-max (flag "),
                             HasSubstr("sessions-max (environment "))));
}

TEST_F(ConfigTest, WhatIsUnknownHidesNothingElseThatIsWrong) {
  WriteFile("surprise = 1\nlanes-max = 65\n");
  const absl::Status status = Read({"--bogus", "1", "--extent-size=3MiB",
                                    "--node-in-flight-max=4MiB", "--in-flight-max=4MiB"},
                                   {"FORESTAGED_SESSIONS_MAX=x"})
                                  .status();
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  // Nothing is said of the two that are smaller than an extent, since nobody knows what it is.
  EXPECT_THAT(lines,
              ElementsAre(HasSubstr("unknown: --bogus 1"), HasSubstr("'surprise' is unknown"),
                          HasSubstr("lanes-max (file "), HasSubstr("sessions-max (environment "),
                          HasSubstr("extent-size (flag ")));
}

TEST_F(ConfigTest, WhatIsUnknownHidesNoPairOfSettings) {
  WriteFile("surprise = 1\n");
  EXPECT_THAT(Read({"--bogus", "--lanes-max=0", "--node-in-flight-max=4MiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--bogus"), HasSubstr("'surprise'"), HasSubstr("lanes-max"),
                             HasSubstr("node-in-flight-max (flag --node-in-flight-max) is"))));
}

TEST_F(ConfigTest, AFlagThatCannotBeParsedHidesNoWrongValue) {
  WriteFile("reader = mmap\n");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--extent-size=3MiB", "--lanes-max"},
        std::vector<std::string>{"--lanes-max=1", "--extent-size=3MiB", "--lanes-max=2"}}) {
    EXPECT_THAT(Read(arguments),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("command line: --lanes-max"), HasSubstr("reader (file "),
                               HasSubstr("extent-size (flag --extent-size) is '3MiB'"))));
  }
}

TEST_F(ConfigTest, ChecksSettingsTogether) {
  EXPECT_THAT(Read({"--extent-size=512MiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("in-flight-max (default) is '256MiB'"),
                             HasSubstr("extent-size, which is 512MiB (flag --extent-size)"))));
  EXPECT_THAT(Read({"--node-in-flight-max=4MiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("node-in-flight-max (flag --node-in-flight-max) is '4MiB'")));
  EXPECT_OK(Read({"--extent-size=512MiB", "--in-flight-max=512MiB"}));
  EXPECT_THAT(
      Read({"--read-bytes-per-second-max=2GiB,nfs=4MiB"}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("read-bytes-per-second-max (flag --read-bytes-per-second-max) is "
                               "'nfs=4MiB,2GiB'"),
                     HasSubstr("at least extent-size, which is 8MiB"))));
  EXPECT_OK(Read({"--read-bytes-per-second-max=nfs=4MiB,ext4=none", "--extent-size=4MiB"}));
  for (const std::string admin : {"/tmp/f.sock", "/tmp/f.sock.descriptors"}) {
    EXPECT_THAT(Read({"--socket=/tmp/f.sock", "--admin-socket=" + admin}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("admin-socket (flag --admin-socket) is '" + admin + "'")));
  }
}

TEST_F(ConfigTest, UnknownFlagsAndKeysAreErrors) {
  EXPECT_THAT(Read({"--extend-size=8MiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--extend-size")));
  EXPECT_THAT(Read({"positional"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("positional")));
  EXPECT_THAT(Read({"--lanes-max=1", "--lanes-max=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lanes-max")));
  WriteFile("extend-size = \"8MiB\"\n");
  EXPECT_THAT(Read({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("'extend-size' is unknown"), HasSubstr(file()),
                                       HasSubstr("extent-size"))));
}

TEST_F(ConfigTest, FileKeysOutsideTheFormatAreErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"[daemon]\nlanes-max = 2\n", ", line 1: '[daemon]' begins a section"},
      {"[default]\nlanes-max = 2\n", ", line 1: '[default]' begins a section"},
      {"daemon.lanes-max = 2\n", ", line 1: setting 'daemon.lanes-max' is unknown"},
      {"lanes-max = 2\nlanes-max = 3\n", ", line 2: 'lanes-max' stands on line 1 already"},
      {"lanes-max = [2, 3]\n", "'lanes-max' takes one value"},
      {"lanes-max\n", "'lanes-max' has no value"},
      {"lanes-max = 0\n", ", line 1) is '0'; allowed: a number from 1 to 64"},
      {"config = \"/x\"\n", "'config' is unknown"},
  };
  for (const auto& [text, why] : cases) {
    WriteFile(text);
    EXPECT_THAT(Read({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr(file()), HasSubstr(why), Not(HasSubstr("\n")))))
        << text;
  }
}

TEST_F(ConfigTest, AllThatIsWrongInAFileIsToldAtOnce) {
  WriteFile(
      "[nothing]\n"
      "lanes-max = 0\n"
      "surprise = 1\n"
      "; old\n"
      "reader\n");
  const absl::Status status = Read({"--sessions-max=0"}).status();
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  EXPECT_THAT(lines, ElementsAre(HasSubstr("line 1: '[nothing]'"), HasSubstr("line 4: a comment"),
                                 HasSubstr("line 5: 'reader' has no value"),
                                 HasSubstr("line 2) is '0'"), HasSubstr("sessions-max (flag")));
}

TEST_F(ConfigTest, ValuesWithQuotesAndSignsOfCommentsArePrintedAsTheyReadBack) {
  const std::string path = "/tmp/a \"b\" \\ #c";
  ASSERT_OK_AND_ASSIGN(const StartRequest first, Read({"--print-config", "--socket", path}));
  WriteFile(*first.text);
  ASSERT_OK_AND_ASSIGN(const StartRequest second, Read({}));
  EXPECT_EQ(second.config.socket_path, path);
}

TEST_F(ConfigTest, UnknownArgumentsAreNamedInTheirOrder) {
  EXPECT_THAT(Read({"--bogus", "1", "--worse", "--lanes-max=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("command line: unknown: --bogus 1 --worse (forestaged --help")));
}

TEST_F(ConfigTest, TakesTheNamedFileInsteadOfTheDefaultOne) {
  const std::string other = file() + ".other";
  std::ofstream(other) << "lanes-max = 5\n";
  WriteFile("lanes-max = 2\n");
  EXPECT_EQ(Read({"--config", other}).value().config.lanes_max, 5u);
  EXPECT_EQ(Read({}, {"FORESTAGED_CONFIG=" + other}).value().config.lanes_max, 5u);
  EXPECT_EQ(Read({"--config", file()}, {"FORESTAGED_CONFIG=" + other}).value().config.lanes_max,
            2u);
}

TEST_F(ConfigTest, ANamedFileThatCannotBeReadIsAnError) {
  EXPECT_THAT(Read({"--config", file()}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   AllOf(HasSubstr(file()), HasSubstr("ENOENT"))));
  EXPECT_THAT(Read({"--config", std::filesystem::path(file()).parent_path().string()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a directory")));
}

TEST_F(ConfigTest, WarnsOfVariablesThatLookLikeSettings) {
  ASSERT_OK_AND_ASSIGN(const StartRequest request,
                       Read({}, {"FORESTAGED_LANES=3", "FORESTAGE_LAUNCH_NONCE=x",
                                 "FORESTAGED_CONFIG=" + std::string("/dev/null")}));
  EXPECT_THAT(request.warnings, ElementsAre(AllOf(HasSubstr("FORESTAGED_LANES "),
                                                  Not(HasSubstr("the variable of")))));
}

TEST_F(ConfigTest, WarningsOfTheSocketsVariablesNameThoseThatCount) {
  ASSERT_OK_AND_ASSIGN(
      const StartRequest request,
      Read({}, {"FORESTAGED_SOCKET=/tmp/a.sock", "FORESTAGED_ADMIN_SOCKET=/tmp/b.sock"}));
  EXPECT_THAT(
      request.warnings,
      ElementsAre("environment variable FORESTAGED_SOCKET is no setting and is ignored; the "
                  "variable of socket is FORESTAGE_SOCKET",
                  "environment variable FORESTAGED_ADMIN_SOCKET is no setting and is ignored; the "
                  "variable of admin-socket is FORESTAGE_ADMIN_SOCKET"));
  EXPECT_EQ(Find(request, "socket").source, "default");
}

TEST_F(ConfigTest, WarnsOfSettingsThatLimitNothingOrEverything) {
  ASSERT_OK_AND_ASSIGN(
      const StartRequest excess,
      Read({"--print-config", "--in-flight-max=2GiB", "--sessions-max=8",
            "--sessions-per-uid-max=9", "--memory-limit=1GiB", "--staged-bytes-per-uid-max=2GiB"}));
  EXPECT_THAT(excess.warnings,
              ElementsAre("in-flight-max (flag --in-flight-max) is '2GiB' and node-in-flight-max "
                          "(default) is '1GiB': only the latter, smaller one limits",
                          HasSubstr("sessions-per-uid-max (flag"),
                          HasSubstr("staged-bytes-per-uid-max (flag")));
  ASSERT_OK_AND_ASSIGN(const StartRequest nothing,
                       Read({"--memory-limit=0", "--staged-bytes-per-uid-max=0"}));
  EXPECT_THAT(nothing.warnings,
              ElementsAre(AllOf(HasSubstr("memory-limit (flag"), HasSubstr("nothing is staged")),
                          AllOf(HasSubstr("staged-bytes-per-uid-max (flag"), HasSubstr("'none'"))));
  // A default that is too large for what somebody chose is no mistake of his.
  ASSERT_OK_AND_ASSIGN(const StartRequest chosen,
                       Read({"--node-in-flight-max=64MiB", "--sessions-max=8"}));
  EXPECT_THAT(chosen.warnings, IsEmpty());
}

TEST_F(ConfigTest, HelpNamesEverySettingWithDefaultAndVariable) {
  ASSERT_OK_AND_ASSIGN(const StartRequest request, Read({}));
  ASSERT_OK_AND_ASSIGN(const StartRequest help, Read({"--help"}));
  ASSERT_TRUE(help.text.has_value());
  EXPECT_THAT(*help.text, AllOf(HasSubstr("--config FILE"), HasSubstr("--print-config"),
                                HasSubstr("--version"), HasSubstr("FORESTAGED_EXTENT_SIZE")));
  for (const EffectiveSetting& setting : request.settings) {
    EXPECT_THAT(*help.text, AllOf(HasSubstr(absl::StrCat("--", setting.name, " ")),
                                  HasSubstr(absl::StrCat("Default: ", setting.value))));
  }
}

TEST_F(ConfigTest, VersionIsThatOfTheBuild) {
  EXPECT_EQ(Read({"--version"}).value().text, absl::StrCat("forestaged ", DaemonVersion(), "\n"));
}

TEST_F(ConfigTest, PrintedConfigurationReadsBackTheSame) {
  ASSERT_OK_AND_ASSIGN(const StartRequest first,
                       Read({"--print-config", "--extent-size=64KiB", "--agreement-timeout=90s",
                             "--read-bytes-per-second-max=ext4=none,nfs=500MiB,1GiB"},
                            {"FORESTAGED_READER=io_uring"}));
  ASSERT_TRUE(first.text.has_value());
  EXPECT_THAT(*first.text,
              AllOf(HasSubstr("extent-size = \"64KiB\"  # flag --extent-size\n"),
                    HasSubstr("reader = \"io_uring\"  # environment FORESTAGED_READER\n"),
                    HasSubstr("lanes-max = \"8\"  # default\n")));
  WriteFile(*first.text);
  ASSERT_OK_AND_ASSIGN(const StartRequest second, Read({}));
  ASSERT_EQ(second.settings.size(), first.settings.size());
  for (size_t i = 0; i < first.settings.size(); ++i) {
    EXPECT_EQ(second.settings[i].value, first.settings[i].value) << first.settings[i].name;
    EXPECT_EQ(second.settings[i].source, absl::StrCat("file ", file(), ", line ", i + 1));
  }
}

TEST_F(ConfigTest, WrongSettingsAreToldBeforePrintConfigPrints) {
  EXPECT_FALSE(Read({"--print-config", "--lanes-max=0"}).ok());
}

TEST(ConfigPageTest, ListsEverySettingAsTheCodeHasIt) {
  ExpectGeneratedSection(CONFIGURATION_PAGE, SettingsAsMarkdown());
}

}  // namespace
}  // namespace forestage
