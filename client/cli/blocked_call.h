// Which file a process waits for in the kernel, from /proc. For people who wonder why nothing
// comes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

namespace forestage {

// A call on a file that had not come back when it was looked at.
struct BlockedCall {
  // "open".
  std::string call;
  // As the call names it, or as its descriptor does.
  std::string file;
  // Where in the file, of a call that says so.
  std::optional<uint64_t> offset = std::nullopt;
  // Differs between two calls, but for the same one repeated with the same arguments.
  std::string identity;
};

// "read of /models/a.safetensors at offset 4096".
std::string BlockedText(const BlockedCall& blocked);

// Of any other thread of the process, which is this one or a child; the main thread's first.
// nullopt when none waits for a file, or nothing can be learned. Does not wait for the file.
std::optional<BlockedCall> FindBlockedCall(pid_t process);

}  // namespace forestage
