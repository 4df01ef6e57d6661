#include "client/cli/command_line.h"

#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/byte_format.h"
#include "client/cli/demo_command.h"
#include "client/cli/doctor_command.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/health_command.h"
#include "client/cli/load_command.h"
#include "client/cli/ls_command.h"
#include "client/cli/output.h"
#include "client/cli/rank_load.h"
#include "client/cli/rank_options.h"
#include "client/cli/stage_command.h"
#include "client/cli/status_command.h"
#include "client/cli/supervised_command.h"
#include "client/cli/termination_signals.h"
#include "client/src/socket_connect.h"

#include "common/socket_path.h"

namespace forestage {
namespace {

constexpr char kDescription[] =
    "Forestage reads a checkpoint once per node and lets all local ranks load it from memory.";

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done\n"
    "  1  the operation failed; standard error says what to do\n"
    "  2  wrong usage; nothing was done\n"
    "  3  no daemon where one is needed (status, health, stage)\n"
    "  4  load --verify found bytes that differ from the file's\n"
    "  128 + N, as shells show it: ended by signal N";

std::string Footer(const char* examples) {
  return absl::StrCat("Examples:\n", examples, "\n", kExitCodes);
}

// All commands' options; they live as long as the parser that writes into them.
struct Parsed {
  GlobalOptions global;
  LsOptions ls;
  DoctorOptions doctor;
  StageOptions stage;
  LoadOptions load;
  RankOptions rank;
  DemoOptions demo;
  // Of load and rank; checked by the parser, then turned into values.
  std::string share = "all";
  std::string policy = "auto";
  std::string agreement = "eager";
  std::string demo_size = "1GiB";
  std::string demo_architecture = "llama";
  // The command that was given.
  std::function<ExitCode()> run;
  // The command cannot do anything without a daemon.
  bool needs_daemon = false;
  // Asks one if there is one, although it can do without.
  bool asks_daemon = false;
  // The command looks at the signals that end it.
  bool watches_signals = false;
};

// Of demo; far more than a small model has tensors for.
constexpr uint64_t kShardsMax = 16384;
// How long a command may take to end in order when a signal has come.
constexpr absl::Duration kOrderlyEndPatience = absl::Milliseconds(1500);

// A check of CLI11 for what names something, where an empty answer means that the text is fine.
// Empty is mostly a variable that is not set.
std::string CheckNotEmpty(const std::string& text) {
  return text.empty() ? "the argument is empty (is a variable not set?)" : "";
}

// They stand before and after the command's name alike.
void AddGlobalOptions(CLI::App& app, GlobalOptions& global) {
  app.add_option("--socket", global.socket_path,
                 absl::StrCat("The daemon's socket [$", kSocketPathVariable, ", else ",
                              kSocketPathDefault, "]"))
      ->check(CheckNotEmpty)
      ->type_name("PATH");
  app.add_option(
         "--admin-socket", global.admin_socket_path,
         absl::StrCat("The daemon's socket for administrators, for status [$",
                      kAdminSocketPathVariable, ", else the daemon's socket with .admin behind]"))
      ->check(CheckNotEmpty)
      ->type_name("PATH");
  app.add_option("--daemon-user", global.daemon_user,
                 absl::StrCat("The user that the daemon runs as, by name or number, where that is "
                              "neither root nor you [$",
                              kDaemonUserVariable, "]"))
      ->type_name("USER");
  app.add_flag("--no-daemon", global.no_daemon, "Ask no daemon; read the files in this process");
  app.add_flag("--json", global.json,
               "Facts and errors as one JSON document on standard output, no progress");
}

CLI::App* AddCommand(CLI::App& app, Parsed& parsed, const char* name, const char* description,
                     const char* examples) {
  CLI::App* command = app.add_subcommand(name, description);
  AddGlobalOptions(*command, parsed.global);
  command->footer(Footer(examples));
  return command;
}

// Makes ParseBytes a check of CLI11, where an empty answer means that the text is fine.
std::string CheckSize(const std::string& text) {
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  return bytes.ok() ? std::string() : std::string(bytes.status().message());
}

// The same for a whole number, of which CLI11's own checks say nothing that helps.
std::function<std::string(const std::string&)> CheckCount(uint64_t max) {
  return [max](const std::string& text) {
    uint64_t count = 0;
    const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
    if (digits && absl::SimpleAtoi(text, &count) && count >= 1 && count <= max)
      return std::string();
    return absl::StrCat("'", text, "' is not a number from 1 to ", max);
  };
}

void AddLs(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(app, parsed, "ls", "List what a checkpoint holds",
                                 "  forestage ls /models/llama\n"
                                 "  forestage ls /models/llama model.layers.0.\n"
                                 "  forestage ls --json /models/llama\n");
  command->add_option("DIR", parsed.ls.directory, "Directory of the checkpoint")
      ->required()
      ->check(CheckNotEmpty);
  command->add_option("PREFIX", parsed.ls.prefix, "Only tensors whose name begins so");
  command->callback([&parsed] {
    parsed.watches_signals = true;
    parsed.run = [&] {
      return RunSupervised(parsed.global, absl::ZeroDuration(),
                           [&](TerminationSignals&) { return RunLs(parsed.global, parsed.ls); });
    };
  });
}

void AddStage(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(app, parsed, "stage",
                                 "Bring a checkpoint into memory and hold it there until Ctrl-C",
                                 "  forestage stage /models/llama\n"
                                 "  forestage stage --once --json /models/llama\n");
  command->add_option("DIR", parsed.stage.directory, "Directory of the checkpoint")
      ->required()
      ->check(CheckNotEmpty);
  command->add_flag("--once", parsed.stage.once, "Leave when all is in memory");
  command->callback([&parsed] {
    parsed.needs_daemon = true;
    parsed.watches_signals = true;
    parsed.run = [&] {
      return RunSupervised(parsed.global, kOrderlyEndPatience, [&](TerminationSignals& signals) {
        return RunStage(parsed.global, parsed.stage, signals);
      });
    };
  });
}

// Options that load and rank have in common.
void AddSharingOptions(CLI::App& command, Parsed& parsed) {
  command.add_option("--share", parsed.share, "What each rank takes: every tensor, or its rows")
      ->check(CLI::IsMember({"all", "rows"}))
      ->type_name("")
      ->capture_default_str();
  command.add_option("--policy", parsed.policy, "Who reads")
      ->check(CLI::IsMember({"auto", "native", "rank_striped_read_ahead"}))
      ->type_name("")
      ->capture_default_str();
  command
      .add_option("--agreement", parsed.agreement,
                  "When the ranks are told the decision: each at its open, or all at once")
      ->check(CLI::IsMember({"eager", "strict"}))
      ->type_name("")
      ->capture_default_str();
}

void AddLoad(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(
      app, parsed, "load", "Load a checkpoint with several rank processes",
      "  forestage load /models/llama --ranks 4\n"
      "  forestage load /models/llama --ranks 8 --share rows --verify\n"
      "  forestage load /models/llama --ranks 2 --no-daemon --digests sums.txt --json\n");
  LoadOptions& load = parsed.load;
  command->add_option("DIR", load.directory, "Directory of the checkpoint")
      ->required()
      ->check(CheckNotEmpty);
  command->add_option("--ranks", load.ranks, "Number of rank processes")
      ->required()
      ->check(CheckCount(kRanksMax))
      ->type_name("N");
  AddSharingOptions(*command, parsed);
  command->add_flag("--verify", load.verify,
                    "Each rank compares every slice with its own read of the file");
  command->add_flag("--together", load.together,
                    "Ranks begin at the same moment, when all their processes are up");
  command
      ->add_option("--digests", load.digests_path,
                   "Write a line 'rank name sha256' for every slice to this file")
      ->check(CheckNotEmpty)
      ->type_name("FILE");
  command->add_flag("--own", load.own,
                    "Each rank copies every slice into memory of its own and keeps it to the end");
  command->add_option("--group", load.group_name, "Name of the group [a name of its own]")
      ->check(CheckNotEmpty)
      ->type_name("NAME");
  command->callback([&parsed] {
    parsed.load.share = *ShareFromName(parsed.share);
    parsed.load.policy = *PolicyFromName(parsed.policy);
    parsed.load.agreement = *AgreementFromName(parsed.agreement);
    parsed.watches_signals = true;
    parsed.run = [&] {
      return RunSupervised(parsed.global, kOrderlyEndPatience, [&](TerminationSignals& signals) {
        return RunLoad(parsed.global, parsed.load, signals);
      });
    };
  });
}

// What `load` starts; see RankArguments. Not for people, so it stands in no help.
void AddRank(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(app, parsed, kRankCommandName, "One rank of load", "");
  command->group("");
  RankOptions& rank = parsed.rank;
  command->add_option("--directory", rank.directory)->required();
  command->add_option("--rank", rank.rank)->required();
  command->add_option("--ranks", rank.ranks)->required()->check(CLI::Range(uint32_t{1}, kRanksMax));
  AddSharingOptions(*command, parsed);
  command->add_option("--group", rank.group_name)->required();
  command->add_option("--nonce", rank.launch_nonce)->required();
  command->add_flag("--verify", rank.verify);
  command->add_flag("--digests", rank.digests);
  command->add_flag("--own", rank.own);
  command->add_flag("--together", rank.together);
  command->callback([&parsed] {
    if (parsed.rank.rank >= parsed.rank.ranks)
      throw CLI::ValidationError("--rank", "must be less than --ranks");
    parsed.rank.share = *ShareFromName(parsed.share);
    parsed.rank.policy = *PolicyFromName(parsed.policy);
    parsed.rank.agreement = *AgreementFromName(parsed.agreement);
    parsed.watches_signals = true;
    parsed.run = [&] { return RunRank(parsed.global, parsed.rank); };
  });
}

void AddStatus(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(app, parsed, "status", "Show what the daemon holds now",
                                 "  forestage status\n  forestage status --json\n");
  command->callback([&parsed] {
    parsed.needs_daemon = true;
    parsed.run = [&] { return RunStatus(parsed.global); };
  });
}

void AddDoctor(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(
      app, parsed, "doctor", "Test a checkpoint's storage: what slows it, what to change",
      "  forestage doctor /models/llama\n"
      "  forestage doctor --json /models/llama\n"
      "\n"
      "It reads up to 8 MiB on each mount, and may drop one file there from memory.\n"
      "Weaknesses are no failure: 0 when every mount was tested, 1 when a mount fails or\n"
      "does not answer.\n");
  command->add_option("DIR", parsed.doctor.directory, "Directory of the checkpoint")
      ->required()
      ->check(CheckNotEmpty);
  command->callback([&parsed] {
    parsed.asks_daemon = true;
    parsed.watches_signals = true;
    parsed.run = [&] {
      return RunSupervised(parsed.global, absl::ZeroDuration(), [&](TerminationSignals&) {
        return RunDoctor(parsed.global, parsed.doctor);
      });
    };
  });
}

void AddHealth(CLI::App& app, Parsed& parsed) {
  CLI::App* command = AddCommand(app, parsed, "health", "Ask whether the daemon is ready to serve",
                                 "  forestage health && echo ready\n");
  command->callback([&parsed] {
    parsed.needs_daemon = true;
    parsed.run = [&] { return RunHealth(parsed.global); };
  });
}

void AddDemo(CLI::App& app, Parsed& parsed) {
  CLI::App* command =
      AddCommand(app, parsed, "demo", "Write a checkpoint to try things with",
                 "  forestage demo /tmp/demo\n"
                 "  forestage demo /tmp/moe --arch mixtral --size 4GiB --shards 8\n");
  DemoOptions& demo = parsed.demo;
  command->add_option("DIR", demo.directory, "Directory to write into; made when it is missing")
      ->required()
      ->check(CheckNotEmpty);
  command->add_option("--size", parsed.demo_size, "About so many bytes of tensors")
      ->check(CheckSize)
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_option("--shards", demo.shard_count, "Number of weight files")
      ->check(CheckCount(kShardsMax))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--arch", parsed.demo_architecture, "Whose names and shapes")
      ->check(CLI::IsMember({"llama", "mixtral"}))
      ->type_name("")
      ->capture_default_str();
  command->add_flag("--force", demo.force, "Write into a directory that is not empty");
  command->callback([&parsed] {
    parsed.demo.size_bytes = *ParseBytes(parsed.demo_size);
    parsed.demo.architecture = parsed.demo_architecture == "mixtral" ? DemoArchitecture::kMixtral
                                                                     : DemoArchitecture::kLlama;
    parsed.watches_signals = true;
    parsed.run = [&] {
      return RunSupervised(parsed.global, kOrderlyEndPatience, [&](TerminationSignals& signals) {
        return RunDemo(parsed.global, parsed.demo, signals);
      });
    };
  });
}

ExitCode RunVersion(const GlobalOptions& global) {
  if (global.json) {
    PrintJson({{"version", FORESTAGE_VERSION}});
  } else {
    PrintText("forestage " FORESTAGE_VERSION "\n");
  }
  return ExitCode::kOk;
}

void AddVersion(CLI::App& app, Parsed& parsed) {
  CLI::App* command =
      AddCommand(app, parsed, "version", "Print the version", "  forestage version\n");
  command->callback([&parsed] { parsed.run = [&] { return RunVersion(parsed.global); }; });
}

// A --socket on the command line names a daemon and so its administrators' socket, too: before the
// variable, which may be about another daemon.
void ResolveSocketPaths(GlobalOptions& global) {
  const bool socket_given = !global.socket_path.empty();
  if (!socket_given) {
    const char* variable = std::getenv(kSocketPathVariable);
    global.socket_path = variable != nullptr && *variable != '\0' ? variable : kSocketPathDefault;
  }
  if (!global.admin_socket_path.empty()) return;
  const char* variable = std::getenv(kAdminSocketPathVariable);
  global.admin_socket_path = !socket_given && variable != nullptr && *variable != '\0'
                                 ? variable
                                 : AdminSocketPath(global.socket_path);
}

void ResolveDaemonUser(GlobalOptions& global) {
  const char* variable = std::getenv(kDaemonUserVariable);
  if (global.daemon_user.empty() && variable != nullptr) global.daemon_user = variable;
}

// Also when parsing stopped before the flag.
bool WantsJson(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") return true;
  }
  return false;
}

// For `--name=` with nothing behind CLI11 would take the next argument, whatever that is. Empty:
// there is none.
std::string EmptyValueText(int argc, char** argv) {
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    absl::string_view name = argv[i];
    if (absl::StartsWith(name, "--") && absl::ConsumeSuffix(&name, "=") &&
        !absl::StrContains(name, '=')) {
      return absl::StrCat(name, ": ", CheckNotEmpty(""));
    }
  }
  return "";
}

// CLI11 asks for a command where it was given a word that is none.
std::string UsageText(const CLI::App& app, const CLI::ParseError& error) {
  // In their order, which CLI11's own message turns round.
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return error.what();
  if (!app.get_subcommands().empty())
    return absl::StrCat("not expected here: ", absl::StrJoin(unknown, " "));
  return absl::StrCat("'", unknown.front(), "' is no ",
                      absl::StartsWith(unknown.front(), "-") ? "option" : "command",
                      " of forestage");
}

ExitCode Run(int argc, char** argv) {
  CLI::App app(kDescription, "forestage");
  Parsed parsed;
  AddGlobalOptions(app, parsed.global);
  app.set_version_flag("--version", "forestage " FORESTAGE_VERSION, "Print the version");
  app.footer(
      Footer("  forestage demo /tmp/demo\n"
             "  forestage ls /tmp/demo\n"
             "  forestage load /tmp/demo --ranks 4 --verify\n"));
  app.require_subcommand(1);
  AddLs(app, parsed);
  AddStage(app, parsed);
  AddLoad(app, parsed);
  AddRank(app, parsed);
  AddStatus(app, parsed);
  AddHealth(app, parsed);
  AddDoctor(app, parsed);
  AddDemo(app, parsed);
  AddVersion(app, parsed);
  if (const std::string empty = EmptyValueText(argc, argv); !empty.empty()) {
    parsed.global.json = WantsJson(argc, argv);
    return Fail(parsed.global, ExitCode::kUsage, absl::StrCat(empty, "; see forestage --help"));
  }
  // CLI11 reports by exceptions; they end here.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream text;
      app.exit(error, text, text);
      PrintText(text.str());
      return ExitCode::kOk;
    }
    parsed.global.json = WantsJson(argc, argv);
    return Fail(parsed.global, ExitCode::kUsage,
                absl::StrCat(UsageText(app, error), "; see forestage --help"));
  }
  if (parsed.needs_daemon && parsed.global.no_daemon) {
    return Fail(parsed.global, ExitCode::kUsage,
                "this command needs the daemon; leave --no-daemon out");
  }
  ResolveSocketPaths(parsed.global);
  ResolveDaemonUser(parsed.global);
  if (!parsed.global.no_daemon && (parsed.needs_daemon || parsed.asks_daemon)) {
    const absl::Status socket = CheckRanksSocket(parsed.global.socket_path);
    if (!socket.ok()) return Fail(parsed.global, ExitCode::kUsage, socket);
  }
  if (!parsed.watches_signals) UnblockWatchedSignals();
  return parsed.run();
}

}  // namespace

int RunCommandLine(int argc, char** argv) {
  return static_cast<int>(FinishOutput(Run(argc, argv)));
}

}  // namespace forestage
