// CHECK for our own invariants, in every build. Never for what the outside world decides: a peer,
// a file or a device that misbehaves is a Status.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace forestage {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s (a bug in Forestage)\n", file, line, expression);
  std::abort();
}

}  // namespace forestage

#define CHECK(expression) \
  ((expression) ? (void)0 : ::forestage::CheckFailed(__FILE__, __LINE__, #expression))
