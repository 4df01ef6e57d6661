// The daemon's settings. One table in config.cc makes the flags, the environment variables, the
// configuration file's keys, --help and docs/configuration.md.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace forestage {

// Which way of reading lanes use.
enum class ReaderChoice { kAuto, kUring, kThreads };

struct Config {
  // Unix socket of the gRPC API. The descriptor socket is beside it: the same path +
  // ".descriptors".
  std::string socket_path = "/run/forestage/forestaged.sock";
  // host:port on a loopback address, or "none". Port 0 takes a free one.
  std::string metrics_address = "127.0.0.1:9748";
  ReaderChoice reader = ReaderChoice::kAuto;
  // Unit of reading and accounting: a power of two, 64 KiB to 1 GiB.
  uint64_t extent_bytes = 8 * 1024 * 1024;
  // Most lanes that one checkpoint gets; it gets one a local rank.
  uint32_t lanes_max = 8;
  // Reads in flight over all lanes of a checkpoint, in bytes.
  uint64_t in_flight_bytes_max = 128 * 1024 * 1024;
  uint32_t sessions_max = 256;
  // Strict agreement: how long a group may take to become complete, when its ranks do not say.
  absl::Duration agreement_timeout = absl::Seconds(60);
  // How long a session may take from its open to its last descriptor.
  absl::Duration descriptor_timeout = absl::Seconds(30);
  std::string log_level = "info";
};

// Thread-safe name of the descriptor socket.
inline std::string DescriptorSocketPath(const std::string& socket_path) {
  return socket_path + ".descriptors";
}

}  // namespace forestage
