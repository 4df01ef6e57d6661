// The daemon's settings. One table in config.cc makes the flags, the environment variables, the
// configuration file's keys, --help and the table of docs/configuration.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/socket_path.h"
#include "daemon/memory/memory_headroom.h"
#include "daemon/memory/memory_text.h"
#include "daemon/storage/read_rate_limits.h"

namespace forestage {

// Which way of reading lanes use.
enum class ReaderChoice { kAuto, kUring, kThreads };
// "auto", "io_uring", "threads".
absl::string_view ReaderChoiceName(ReaderChoice choice);

// In which order is read what is demanded without one.
enum class ReadOrder { kAuto, kFile, kNodeOffset };
// "auto", "file", "node-offset".
absl::string_view ReadOrderName(ReadOrder order);

struct Config {
  // Unix socket of the gRPC API. The descriptor socket is beside it: the same path +
  // ".descriptors".
  std::string socket_path = kSocketPathDefault;
  // Group of these two: a name or a number; empty: the daemon's own.
  std::string socket_group;
  // Their mode. To connect needs the right to write.
  uint32_t socket_mode = 0660;
  // Unix socket for administrators (root and the daemon's own user). Empty: socket_path + ".admin".
  std::string admin_socket_path;
  // host:port on a loopback address, or "none". Port 0 takes a free one.
  std::string metrics_address = "127.0.0.1:9748";
  ReaderChoice reader = ReaderChoice::kAuto;
  // Unit of reading and accounting: a power of two, 64 KiB to 1 GiB.
  uint64_t extent_bytes = 8 * 1024 * 1024;
  // Most lanes that one checkpoint gets; it gets one a local rank.
  uint32_t lanes_max = 8;
  // Reads in flight on one mount and over all, in bytes, of all checkpoints together. Both at least
  // extent_bytes. How many are best is found by trying: more than a device needs only lets the
  // first tensor wait for those behind it.
  uint64_t in_flight_bytes_max = 256 * 1024 * 1024;
  uint64_t node_in_flight_bytes_max = 1024 * 1024 * 1024;
  // Bytes a second that may be read of a mount. Each at least extent_bytes.
  ReadRateLimits read_rate_limits;
  ReadOrder read_order = ReadOrder::kAuto;
  // What kNodeOffset takes for this node's name. Empty: the host's.
  std::string node_name;
  // Memory that staging leaves free, of each bound.
  MemoryHeadroom memory_headroom;
  // Most bytes of all checkpoints that are read for at one time; kNoMemoryLimit: none.
  uint64_t memory_limit_bytes = kNoMemoryLimit;
  uint32_t sessions_max = 256;
  // Of these, of one user. In containers all ranks may be one user, so it leaves little to others.
  uint32_t sessions_per_user_max = 192;
  // Most bytes of all checkpoints that are read for one user; kNoMemoryLimit: none. There is none
  // by default, since on most nodes all ranks are one user, who may have all memory that there is.
  uint64_t staged_bytes_per_user_max = kNoMemoryLimit;
  // Strict agreement: how long a group may take to become complete, when its ranks do not say.
  absl::Duration agreement_timeout = absl::Seconds(60);
  // How long a session may take from its open to its last descriptor.
  absl::Duration descriptor_timeout = absl::Seconds(30);
  // trace, debug, info, warning or error.
  std::string log_level = "info";
};

// Read when it exists and no other file is named.
inline constexpr char kConfigFileDefault[] = "/etc/forestage/forestaged.toml";

// The version of this build, such as "0.1.0".
absl::string_view DaemonVersion();

// What the outside gives the daemon at its start.
struct StartInputs {
  // Without the program's name.
  std::vector<std::string> arguments;
  // "NAME=value" each, as in environ.
  std::vector<std::string> environment;
  std::string config_file_default = kConfigFileDefault;
};

// One setting as it is in force.
struct EffectiveSetting {
  std::string name;
  std::string value;
  // "default", "file PATH, line 3", "environment FORESTAGED_X" or "flag --x".
  std::string source;
};

// What the daemon shall do.
struct StartRequest {
  Config config;
  std::vector<EffectiveSetting> settings;
  // To be logged: environment variables that look like settings and are none, and settings that are
  // allowed but have no effect, or more of it than one would think.
  std::vector<std::string> warnings;
  // --help, --version or --print-config: print this to standard output and exit with 0. The
  // warnings go to standard error then.
  std::optional<std::string> text;
};

// Reads all settings: a flag counts before the environment, this before the file, this before the
// default. INVALID_ARGUMENT has one line for each wrong setting and each wrong line of the file:
// its name, its source, what is allowed. A wrong value is an error also where another source
// overrides it. Blocks on the file.
absl::StatusOr<StartRequest> ReadStartRequest(const StartInputs& inputs);

// The table of settings as docs/configuration.md has it.
std::string SettingsAsMarkdown();

}  // namespace forestage
