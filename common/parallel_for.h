// Runs a function over indexes in a few threads that live as long as the call.
#pragma once

#include <cstddef>
#include <functional>

namespace forestage {

// Calls body(0) ... body(count - 1), each once, from at most `threads_max` threads, the caller's
// among them, and returns when all have returned. Fewer threads are used when the system gives no
// more. Requires: threads_max >= 1; body is thread-safe.
void ParallelFor(size_t count, size_t threads_max, const std::function<void(size_t index)>& body);

}  // namespace forestage
