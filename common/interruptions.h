// Calls that are made again because a signal interrupted them, but not for ever.
#pragma once

#include <cerrno>

namespace forestage {

// Storage that answers EINTR without a signal, or again and again, is an error like any other: a
// thread must not spin on it. One object a call site, used by one thread.
class Interruptions {
 public:
  // Whether the call that failed with this errno is to be made again. False for everything but
  // EINTR, and for that too after many.
  bool MayRetry(int error_number) { return error_number == EINTR && ++count_ <= kCountMax; }

 private:
  // A signal storm interrupts a call some hundred times a second at most.
  static constexpr int kCountMax = 1000;

  int count_ = 0;
};

}  // namespace forestage
