#include "daemon/config.h"

#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include <CLI/CLI.hpp>
#include <sys/un.h>

#include "common/check.h"
#include "common/loopback_address.h"
#include "common/socket_path.h"
#include "common/units.h"
#include "daemon/config_file.h"

namespace forestage {
namespace {

constexpr char kEnvironmentPrefix[] = "FORESTAGED_";
constexpr char kCommandLineAdvice[] = " (forestaged --help lists all flags)";
constexpr char kConfigFlag[] = "--config";
constexpr char kConfigVariable[] = "FORESTAGED_CONFIG";

constexpr uint64_t kExtentBytesMin = 64 * kKiB;
constexpr uint64_t kExtentBytesMax = kGiB;
constexpr uint64_t kInFlightBytesMin = 64 * kKiB;
constexpr uint64_t kInFlightBytesMax = 64 * kGiB;
constexpr uint32_t kLanesMax = 64;
constexpr uint32_t kSessionsMax = 65536;
constexpr size_t kNodeNameBytesMax = 253;
// The owner of the socket may always use it.
constexpr uint32_t kSocketModeOwner = 0600;
constexpr uint32_t kSocketModeMax = 0777;
constexpr absl::Duration kTimeoutMin = absl::Milliseconds(10);
constexpr absl::Duration kTimeoutMax = absl::Hours(1);
// The descriptor socket's path must fit a socket address too, with its NUL.
constexpr size_t kSocketPathBytesMax =
    sizeof(sockaddr_un::sun_path) - 1 - (sizeof(".descriptors") - 1);

// The placeholder of settings that are a number of bytes, and what is said of a wrong one.
constexpr absl::string_view kSizePlaceholder = "SIZE";
constexpr absl::string_view kSizeWords =
    " (a size is a number of bytes, or a number with KiB, MiB, GiB or TiB directly behind it)";

// One row of the table of settings.
struct Setting {
  absl::string_view name;
  // Stands for the value in --help.
  absl::string_view placeholder;
  absl::string_view help;
  // Completes "allowed: ".
  absl::string_view allowed;
  // False, with `config` unchanged, when the text is not allowed.
  bool (*parse)(absl::string_view text, Config& config);
  // The value as `parse` reads it.
  std::string (*format)(const Config& config);
};

bool ParseSocketPath(absl::string_view text, Config& config) {
  if (!absl::StartsWith(text, "/") || absl::EndsWith(text, "/") ||
      text.size() > kSocketPathBytesMax || absl::StrContains(text, absl::string_view("\0", 1))) {
    return false;
  }
  config.socket_path = std::string(text);
  return true;
}

bool ParseAdminSocketPath(absl::string_view text, Config& config) {
  Config other;
  if (!text.empty() && !ParseSocketPath(text, other)) return false;
  config.admin_socket_path = std::string(text);
  return true;
}

// Whether there is such a group is seen when the socket is made.
bool ParseSocketGroup(absl::string_view text, Config& config) {
  if (text.find_first_of(absl::string_view(" \t\n:,\0", 6)) != absl::string_view::npos)
    return false;
  config.socket_group = std::string(text);
  return true;
}

bool ParseSocketMode(absl::string_view text, Config& config) {
  if (text.empty() || text.size() > 4 ||
      text.find_first_not_of("01234567") != absl::string_view::npos) {
    return false;
  }
  uint32_t mode = 0;
  for (const char digit : text) mode = mode * 8 + static_cast<uint32_t>(digit - '0');
  if (mode > kSocketModeMax || (mode & kSocketModeOwner) != kSocketModeOwner) return false;
  config.socket_mode = mode;
  return true;
}

bool ParseMetricsAddress(absl::string_view text, Config& config) {
  if (text != "none" && !ParseLoopbackAddress(text).ok()) return false;
  config.metrics_address = std::string(text);
  return true;
}

bool ParseReader(absl::string_view text, Config& config) {
  for (const ReaderChoice choice :
       {ReaderChoice::kAuto, ReaderChoice::kUring, ReaderChoice::kThreads}) {
    if (text != ReaderChoiceName(choice)) continue;
    config.reader = choice;
    return true;
  }
  return false;
}

bool ParseReadOrder(absl::string_view text, Config& config) {
  for (const ReadOrder order : {ReadOrder::kAuto, ReadOrder::kFile, ReadOrder::kNodeOffset}) {
    if (text != ReadOrderName(order)) continue;
    config.read_order = order;
    return true;
  }
  return false;
}

bool ParseNodeName(absl::string_view text, Config& config) {
  if (text.size() > kNodeNameBytesMax || !absl::c_all_of(text, [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '#';
      })) {
    return false;
  }
  config.node_name = std::string(text);
  return true;
}

bool ParseLogLevel(absl::string_view text, Config& config) {
  for (const absl::string_view level : {"trace", "debug", "info", "warning", "error"}) {
    if (text != level) continue;
    config.log_level = std::string(text);
    return true;
  }
  return false;
}

bool ParseExtentBytes(absl::string_view text, Config& config) {
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok() || *bytes < kExtentBytesMin || *bytes > kExtentBytesMax ||
      (*bytes & (*bytes - 1)) != 0) {
    return false;
  }
  config.extent_bytes = *bytes;
  return true;
}

template <uint64_t Config::*field>
bool ParseInFlightBytes(absl::string_view text, Config& config) {
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok() || *bytes < kInFlightBytesMin || *bytes > kInFlightBytesMax) return false;
  config.*field = *bytes;
  return true;
}

bool ParseReadRateLimits(absl::string_view text, Config& config) {
  const std::optional<ReadRateLimits> limits = ReadRateLimits::Parse(text);
  if (!limits.has_value()) return false;
  config.read_rate_limits = *limits;
  return true;
}

bool ParseMemoryHeadroom(absl::string_view text, Config& config) {
  const std::optional<MemoryHeadroom> headroom = MemoryHeadroom::Parse(text);
  if (!headroom.has_value()) return false;
  config.memory_headroom = *headroom;
  return true;
}

template <uint64_t Config::*field>
bool ParseMemoryLimitSetting(absl::string_view text, Config& config) {
  const absl::StatusOr<uint64_t> bytes =
      text == "none" ? absl::StatusOr<uint64_t>(kNoMemoryLimit) : ParseByteSize(text);
  if (!bytes.ok()) return false;
  config.*field = *bytes;
  return true;
}

template <uint64_t Config::*field>
std::string FormatMemoryLimitSetting(const Config& config) {
  return config.*field == kNoMemoryLimit ? std::string("none") : FormatByteSize(config.*field);
}

template <uint32_t Config::*field, uint32_t max>
bool ParseCount(absl::string_view text, Config& config) {
  uint32_t count = 0;
  if (text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(text, &count) || count < 1 || count > max) {
    return false;
  }
  config.*field = count;
  return true;
}

template <absl::Duration Config::*field>
bool ParseTimeout(absl::string_view text, Config& config) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < kTimeoutMin || duration > kTimeoutMax) {
    return false;
  }
  config.*field = duration;
  return true;
}

template <uint32_t Config::*field>
std::string FormatCount(const Config& config) {
  return absl::StrCat(config.*field);
}

template <absl::Duration Config::*field>
std::string FormatTimeout(const Config& config) {
  return absl::FormatDuration(config.*field);
}

template <std::string Config::*field>
std::string FormatText(const Config& config) {
  return config.*field;
}

// The table. To add a setting: a field of Config, a row here, and the page made anew.
constexpr Setting kSettings[] = {
    {"socket", "PATH",
     "Unix socket of the API; the socket for descriptors is beside it, with '.descriptors' at the "
     "end of its name",
     "an absolute path of at most 95 bytes", ParseSocketPath, FormatText<&Config::socket_path>},
    {"socket-group", "GROUP",
     "Group of the two sockets for ranks; its members may load through the daemon. Empty: the "
     "daemon's own group",
     "a group's name or number, or empty", ParseSocketGroup, FormatText<&Config::socket_group>},
    {"socket-mode", "MODE",
     "Mode of the two sockets for ranks; whoever may write to them may load through the daemon",
     "an octal number from 0600 to 0777 with the owner's 0600 in it", ParseSocketMode,
     [](const Config& config) { return absl::StrFormat("%04o", config.socket_mode); }},
    {"admin-socket", "PATH",
     "Unix socket for administrators, for root and the daemon's own user only. Empty: beside the "
     "socket of the API, with '.admin' at the end of its name",
     "an absolute path of at most 95 bytes, or empty", ParseAdminSocketPath,
     FormatText<&Config::admin_socket_path>},
    {"metrics-address", "HOST:PORT",
     "Where Prometheus metrics are served; port 0 takes a free one, 'none' turns them off",
     "host:port with a loopback address (127.0.0.1:9748, localhost:9748), or none",
     ParseMetricsAddress, FormatText<&Config::metrics_address>},
    {"reader", "NAME",
     "How storage is read: 'auto' takes io_uring where the kernel and the container allow it, else "
     "threads",
     "auto, io_uring or threads", ParseReader,
     [](const Config& config) { return std::string(ReaderChoiceName(config.reader)); }},
    {"extent-size", kSizePlaceholder, "Unit of reading and of the account of what is resident",
     "a power of two from 64KiB to 1GiB", ParseExtentBytes,
     [](const Config& config) { return FormatByteSize(config.extent_bytes); }},
    {"lanes-max", "COUNT", "Most lanes of one checkpoint, which gets one for each local rank",
     "a number from 1 to 64", ParseCount<&Config::lanes_max, kLanesMax>,
     FormatCount<&Config::lanes_max>},
    {"in-flight-max", kSizePlaceholder,
     "Most bytes that are read at one time on one mount, for all its checkpoints together; within "
     "it the daemon finds by trying how many are best; at least one extent",
     "a size from 64KiB to 64GiB", ParseInFlightBytes<&Config::in_flight_bytes_max>,
     [](const Config& config) { return FormatByteSize(config.in_flight_bytes_max); }},
    {"node-in-flight-max", kSizePlaceholder,
     "Most bytes that are read at one time on all mounts together; at least one extent",
     "a size from 64KiB to 64GiB", ParseInFlightBytes<&Config::node_in_flight_bytes_max>,
     [](const Config& config) { return FormatByteSize(config.node_in_flight_bytes_max); }},
    {"read-bytes-per-second-max", kSizePlaceholder,
     "Most bytes a second that are read from storage on one mount, for all its checkpoints "
     "together; with a type of file system before it (nfs=1GiB) on mounts of that type only. At "
     "least one extent",
     "none, a size such as 2GiB, or several with commas between, of which all but one have a type: "
     "nfs=1GiB,fuse=500MiB or 2GiB,ext4=none",
     ParseReadRateLimits, [](const Config& config) { return config.read_rate_limits.ToString(); }},
    {"read-order", "NAME",
     "Where reading begins of a checkpoint that somebody wants whole and in no order of his own: "
     "'file' at its beginning, 'node-offset' at a place that depends on the node's name, so that "
     "nodes that share a store do not all read the same file at one time; 'auto' takes the latter "
     "where no block device is behind the mount",
     "auto, file or node-offset", ParseReadOrder,
     [](const Config& config) { return std::string(ReadOrderName(config.read_order)); }},
    {"node-name", "NAME", "The node's name for read-order. Empty: the host's name",
     "at most 253 printable characters, or empty", ParseNodeName, FormatText<&Config::node_name>},
    {"memory-headroom", kSizePlaceholder,
     "Memory that staging leaves free, of the node's and of each cgroup limit; 'auto' is a tenth "
     "of "
     "the limit, at least 1GiB and at most 16GiB, but never more than half",
     "auto, a size such as 8GiB, or a share from 0% to 90%", ParseMemoryHeadroom,
     [](const Config& config) { return config.memory_headroom.ToString(); }},
    {"memory-limit", kSizePlaceholder,
     "Most bytes of checkpoints that the daemon reads for at one time; a checkpoint that does not "
     "fit is loaded natively. Limits of the node and of cgroups count beside it",
     "none, or a size such as 100GiB", ParseMemoryLimitSetting<&Config::memory_limit_bytes>,
     FormatMemoryLimitSetting<&Config::memory_limit_bytes>},
    {"sessions-max", "COUNT", "Most sessions at one time; a further open is refused",
     "a number from 1 to 65536", ParseCount<&Config::sessions_max, kSessionsMax>,
     FormatCount<&Config::sessions_max>},
    {"sessions-per-uid-max", "COUNT",
     "Most sessions of one user at one time, those included that have ended while their storage "
     "does "
     "not answer; a further open is refused",
     "a number from 1 to 65536", ParseCount<&Config::sessions_per_user_max, kSessionsMax>,
     FormatCount<&Config::sessions_per_user_max>},
    {"staged-bytes-per-uid-max", kSizePlaceholder,
     "Most bytes of checkpoints that the daemon reads for one user at one time, whole checkpoints, "
     "each once; one more that does not fit is loaded natively. In containers all ranks may be one "
     "user",
     "none, or a size such as 100GiB", ParseMemoryLimitSetting<&Config::staged_bytes_per_user_max>,
     FormatMemoryLimitSetting<&Config::staged_bytes_per_user_max>},
    {"agreement-timeout", "DURATION",
     "Strict agreement: how long a group may take to become complete, where its ranks do not say",
     "a duration from 10ms to 1h, such as 60s or 2m", ParseTimeout<&Config::agreement_timeout>,
     FormatTimeout<&Config::agreement_timeout>},
    {"descriptor-timeout", "DURATION",
     "How long a session may take from its open until its last descriptor is here, and from then "
     "until the headers of its shards are read",
     "a duration from 10ms to 1h, such as 30s", ParseTimeout<&Config::descriptor_timeout>,
     FormatTimeout<&Config::descriptor_timeout>},
    {"log-level", "LEVEL", "Least level of the lines written to standard error",
     "trace, debug, info, warning or error", ParseLogLevel, FormatText<&Config::log_level>},
};
constexpr size_t kSettingCount = std::size(kSettings);

size_t IndexOf(absl::string_view name) {
  return static_cast<size_t>(
      absl::c_find_if(kSettings, [&](const Setting& setting) { return setting.name == name; }) -
      std::begin(kSettings));
}

std::string PlainVariableOf(absl::string_view name) {
  return absl::StrCat(kEnvironmentPrefix,
                      absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

std::string VariableOf(absl::string_view name) {
  // The variables that lead clients to the daemon lead the daemon to its place.
  if (name == "socket") return kSocketPathVariable;
  if (name == "admin-socket") return kAdminSocketPathVariable;
  return PlainVariableOf(name);
}

// A value of a setting that some source gave.
struct GivenValue {
  size_t setting_index = 0;
  std::string text;
  std::string source;
};

// Values in rising order of precedence, and all that is wrong so far.
struct Gathering {
  std::vector<GivenValue> values;
  // Some source could not be read in full: settings without a value may have one in it.
  bool partial = false;
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
};

// What the command line says.
struct CommandLine {
  std::vector<GivenValue> values;
  // What is wrong with it, but for values.
  std::vector<std::string> errors;
  // The parser stopped at an error; further flags may stand behind it.
  bool partial = false;
  std::optional<std::string> config_file;
  bool print_config = false;
  // --help or --version.
  std::optional<std::string> text;
};

void AddOptions(CLI::App& app, std::map<size_t, std::string>& flags, std::string& config_file,
                bool& print_config) {
  for (size_t i = 0; i < kSettingCount; ++i) {
    const Setting& setting = kSettings[i];
    app.add_option(absl::StrCat("--", setting.name), flags[i],
                   absl::StrCat(setting.help, ". Allowed: ", setting.allowed, ". Default: ",
                                setting.format(Config()), " [", VariableOf(setting.name), "]"))
        ->type_name(std::string(setting.placeholder));
  }
  app.add_option(kConfigFlag, config_file,
                 absl::StrCat("Configuration file with lines 'name = \"value\"'. Default: ",
                              kConfigFileDefault, ", where it exists [", kConfigVariable, "]"))
      ->type_name("FILE");
  app.add_flag("--print-config", print_config,
               "Print every setting in force with its source, as a configuration file, and exit");
  app.allow_extras();
  app.set_version_flag("--version", absl::StrCat("forestaged ", DaemonVersion()));
}

// What was given for a flag. Also where CLI11 stopped at another one, and has set no variable yet.
std::optional<std::string> GivenText(const CLI::App& app, const std::string& flag) {
  const std::vector<std::string>& given = app.get_option(flag)->results();
  return given.empty() ? std::nullopt : std::optional<std::string>(given.back());
}

// CLI11 reports by exceptions; they end here.
CommandLine ReadCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  std::map<size_t, std::string> flags;
  std::string config_file;
  CLI::App app(
      "Stages checkpoints for all ranks of this node.\n"
      "A flag counts before its environment variable (in brackets), this before the configuration "
      "file.",
      "forestaged");
  try {
    AddOptions(app, flags, config_file, line.print_config);
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForVersion& version) {
    line.text = absl::StrCat(version.what(), "\n");
    return line;
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return line;
  } catch (const CLI::Error& error) {
    line.errors.push_back(absl::StrCat("command line: ", error.what(), kCommandLineAdvice));
    line.partial = true;
  }
  // CLI11's own message has them in the wrong order.
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    line.errors.push_back(
        absl::StrCat("command line: unknown: ", absl::StrJoin(unknown, " "), kCommandLineAdvice));
  }
  for (size_t i = 0; i < kSettingCount; ++i) {
    const std::string flag = absl::StrCat("--", kSettings[i].name);
    if (std::optional<std::string> text = GivenText(app, flag); text.has_value()) {
      line.values.push_back({i, *std::move(text), absl::StrCat("flag ", flag)});
    }
  }
  line.config_file = GivenText(app, kConfigFlag);
  return line;
}

std::string AllNames() {
  return absl::StrJoin(kSettings, ", ", [](std::string* out, const Setting& setting) {
    absl::StrAppend(out, setting.name);
  });
}

// Requires: `gathering` has no values yet.
void GatherFile(const std::string& path, bool must_exist, Gathering& gathering) {
  const std::string source = absl::StrCat("file ", path);
  const absl::StatusOr<std::string> bytes = ReadConfigFile(path);
  if (!bytes.ok()) {
    if (absl::IsNotFound(bytes.status()) && !must_exist) return;
    gathering.partial = true;
    gathering.errors.push_back(absl::StrCat("file ", bytes.status().message()));
    return;
  }
  const ConfigFileText text = ParseConfigFile(*bytes);
  gathering.partial = gathering.partial || !text.errors.empty();
  for (const std::string& error : text.errors) {
    gathering.errors.push_back(absl::StrCat(source, ", ", error));
  }
  for (const ConfigFileEntry& entry : text.entries) {
    const std::string place = absl::StrCat(source, ", line ", entry.line);
    const size_t index = IndexOf(entry.name);
    if (index < kSettingCount) {
      gathering.values.push_back({index, entry.value, place});
    } else if (!entry.in_section) {
      gathering.errors.push_back(
          absl::StrCat(place, ": setting '", entry.name, "' is unknown; known are ", AllNames()));
    }
  }
}

// What is to be added about a variable that is none, but has the name that its setting would have
// if it were like all others; empty for all others.
std::string VariableMeant(absl::string_view variable) {
  for (const Setting& setting : kSettings) {
    if (variable != PlainVariableOf(setting.name)) continue;
    return absl::StrCat("; the variable of ", setting.name, " is ", VariableOf(setting.name));
  }
  return "";
}

void GatherEnvironment(const std::vector<std::string>& environment, Gathering& gathering) {
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals);
    if (variable == kConfigVariable) continue;
    const auto* setting = absl::c_find_if(
        kSettings, [&](const Setting& row) { return VariableOf(row.name) == variable; });
    if (setting == std::end(kSettings)) {
      if (!absl::StartsWith(variable, kEnvironmentPrefix)) continue;
      // Not an error: Kubernetes gives every container variables named after its services.
      gathering.warnings.push_back(absl::StrCat("environment variable ", variable,
                                                " is no setting and is ignored",
                                                VariableMeant(variable)));
      continue;
    }
    gathering.values.push_back({static_cast<size_t>(setting - std::begin(kSettings)),
                                entry.substr(equals + 1), absl::StrCat("environment ", variable)});
  }
}

std::optional<std::string> FindVariable(const std::vector<std::string>& environment,
                                        absl::string_view name) {
  const std::string prefix = absl::StrCat(name, "=");
  for (const std::string& entry : environment) {
    if (absl::StartsWith(entry, prefix)) return entry.substr(prefix.size());
  }
  return std::nullopt;
}

Gathering GatherValues(const StartInputs& inputs, CommandLine line) {
  Gathering gathering;
  gathering.partial = line.partial;
  gathering.errors = std::move(line.errors);
  std::optional<std::string> config_file = std::move(line.config_file);
  if (!config_file.has_value()) config_file = FindVariable(inputs.environment, kConfigVariable);
  GatherFile(config_file.value_or(inputs.config_file_default), config_file.has_value(), gathering);
  GatherEnvironment(inputs.environment, gathering);
  absl::c_move(line.values, std::back_inserter(gathering.values));
  return gathering;
}

// Returns the settings of which no source, or not the one that counts, has a value that is allowed.
std::set<absl::string_view> ApplyValues(Gathering& gathering, StartRequest& request) {
  std::set<absl::string_view> wrong;
  request.settings.resize(kSettingCount);
  for (size_t i = 0; i < kSettingCount; ++i) {
    request.settings[i].name = std::string(kSettings[i].name);
    request.settings[i].source = "default";
  }
  for (const GivenValue& value : gathering.values) {
    const Setting& setting = kSettings[value.setting_index];
    if (!setting.parse(value.text, request.config)) {
      gathering.errors.push_back(absl::StrCat(
          setting.name, " (", value.source, ") is '", value.text, "'; allowed: ", setting.allowed,
          setting.placeholder == kSizePlaceholder ? kSizeWords : ""));
      wrong.insert(setting.name);
      continue;
    }
    wrong.erase(setting.name);
    request.settings[value.setting_index].source = value.source;
  }
  for (size_t i = 0; i < kSettingCount; ++i) {
    request.settings[i].value = kSettings[i].format(request.config);
  }
  return wrong;
}

// Settings that are each allowed, but not together. Those in `wrong` have a value that nobody gave.
void CheckTogether(const StartRequest& request, const std::set<absl::string_view>& wrong,
                   std::vector<std::string>& errors) {
  const EffectiveSetting& extent = request.settings[IndexOf("extent-size")];
  const auto check = [&](absl::string_view name, uint64_t bytes) {
    if (bytes >= request.config.extent_bytes || wrong.count(name) > 0 ||
        wrong.count(extent.name) > 0) {
      return;
    }
    const EffectiveSetting& setting = request.settings[IndexOf(name)];
    errors.push_back(absl::StrCat(setting.name, " (", setting.source, ") is '", setting.value,
                                  "'; allowed: at least ", extent.name, ", which is ", extent.value,
                                  " (", extent.source, ")"));
  };
  check("in-flight-max", request.config.in_flight_bytes_max);
  check("node-in-flight-max", request.config.node_in_flight_bytes_max);
  if (const uint64_t rate = request.config.read_rate_limits.Smallest();
      rate != ReadRateLimits::kNone) {
    check("read-bytes-per-second-max", rate);
  }
  const Config& config = request.config;
  const bool known = wrong.count("socket") == 0 && wrong.count("admin-socket") == 0;
  if (known && (config.admin_socket_path == config.socket_path ||
                config.admin_socket_path == DescriptorSocketPath(config.socket_path))) {
    const EffectiveSetting& setting = request.settings[IndexOf("admin-socket")];
    errors.push_back(absl::StrCat(setting.name, " (", setting.source, ") is '", setting.value,
                                  "'; allowed: a path that is not one of the ranks' two sockets"));
  }
}

// Settings that are allowed, and that do not do what whoever wrote them may think.
void WarnTogether(const StartRequest& request, std::vector<std::string>& warnings) {
  const auto given = [&](absl::string_view name) {
    const EffectiveSetting& setting = request.settings[IndexOf(name)];
    return absl::StrCat(setting.name, " (", setting.source, ") is '", setting.value, "'");
  };
  const auto warn_of_excess = [&](absl::string_view part, uint64_t part_value,
                                  absl::string_view whole, uint64_t whole_value) {
    if (part_value <= whole_value || request.settings[IndexOf(part)].source == "default") return;
    warnings.push_back(
        absl::StrCat(given(part), " and ", given(whole), ": only the latter, smaller one limits"));
  };
  const Config& config = request.config;
  warn_of_excess("in-flight-max", config.in_flight_bytes_max, "node-in-flight-max",
                 config.node_in_flight_bytes_max);
  warn_of_excess("sessions-per-uid-max", config.sessions_per_user_max, "sessions-max",
                 config.sessions_max);
  if (config.staged_bytes_per_user_max != kNoMemoryLimit) {
    warn_of_excess("staged-bytes-per-uid-max", config.staged_bytes_per_user_max, "memory-limit",
                   config.memory_limit_bytes);
  }
  const auto warn_of_nothing = [&](absl::string_view name, uint64_t value) {
    if (value > 0) return;
    warnings.push_back(absl::StrCat(
        given(name),
        ": nothing is staged, every checkpoint is loaded natively; 'none' is without a limit"));
  };
  warn_of_nothing("memory-limit", config.memory_limit_bytes);
  warn_of_nothing("staged-bytes-per-uid-max", config.staged_bytes_per_user_max);
}

std::string SettingsAsConfigFile(const std::vector<EffectiveSetting>& settings) {
  std::string text;
  for (const EffectiveSetting& setting : settings) {
    absl::StrAppend(&text, setting.name, " = ", QuoteConfigValue(setting.value), "  # ",
                    setting.source, "\n");
  }
  return text;
}

}  // namespace

absl::string_view ReaderChoiceName(ReaderChoice choice) {
  switch (choice) {
    case ReaderChoice::kAuto:
      return "auto";
    case ReaderChoice::kUring:
      return "io_uring";
    case ReaderChoice::kThreads:
      return "threads";
  }
  CHECK(false);
}

absl::string_view ReadOrderName(ReadOrder order) {
  switch (order) {
    case ReadOrder::kAuto:
      return "auto";
    case ReadOrder::kFile:
      return "file";
    case ReadOrder::kNodeOffset:
      return "node-offset";
  }
  CHECK(false);
}

absl::string_view DaemonVersion() { return FORESTAGE_VERSION; }

absl::StatusOr<StartRequest> ReadStartRequest(const StartInputs& inputs) {
  CommandLine line = ReadCommandLine(inputs.arguments);
  StartRequest request;
  if (line.text.has_value()) {
    request.text = std::move(line.text);
    return request;
  }
  const bool print_config = line.print_config;
  Gathering gathering = GatherValues(inputs, std::move(line));
  const std::set<absl::string_view> wrong = ApplyValues(gathering, request);
  if (!gathering.partial) CheckTogether(request, wrong, gathering.errors);
  if (!gathering.errors.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(gathering.errors, "\n"));
  }
  request.warnings = std::move(gathering.warnings);
  WarnTogether(request, request.warnings);
  if (print_config) request.text = SettingsAsConfigFile(request.settings);
  return request;
}

std::string SettingsAsMarkdown() {
  std::string text =
      "| setting | environment variable | default | allowed | what it does |\n"
      "|---|---|---|---|---|\n";
  const Config defaults;
  for (const Setting& setting : kSettings) {
    absl::StrAppend(&text, "| `", setting.name, "` | `", VariableOf(setting.name), "` | `",
                    setting.format(defaults).empty() ? " " : setting.format(defaults), "` | ",
                    setting.allowed, " | ", setting.help, " |\n");
  }
  return text;
}

}  // namespace forestage
