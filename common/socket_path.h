// Where the daemon's three Unix sockets are.
#pragma once

#include <string>

namespace forestage {

// Of the gRPC socket, for daemon, client library and command line.
inline constexpr char kSocketPathDefault[] = "/run/forestage/forestaged.sock";

// Environment variable that names another one, to all of them.
inline constexpr char kSocketPathVariable[] = "FORESTAGE_SOCKET";

// Names the user that the daemon runs as, to its clients, where that is neither root nor their own.
inline constexpr char kDaemonUserVariable[] = "FORESTAGE_DAEMON_USER";

// The descriptor socket lies beside the gRPC socket, also where both are mounted into a container
// under another directory.
inline std::string DescriptorSocketPath(const std::string& socket_path) {
  return socket_path + ".descriptors";
}

// Names the administrators' socket where it is not beside the gRPC socket.
inline constexpr char kAdminSocketPathVariable[] = "FORESTAGE_ADMIN_SOCKET";

// The administrators' socket, unless a setting puts it elsewhere: beside the gRPC socket.
inline std::string AdminSocketPath(const std::string& socket_path) {
  return socket_path + ".admin";
}

}  // namespace forestage
