#include "common/descriptor_limit.h"

#include <algorithm>

#include <sys/resource.h>

namespace forestage {

void RaiseDescriptorLimit(uint64_t more) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // An infinite limit is the largest number, so it needs no case of its own.
  if (limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur += std::min<rlim_t>(more, limit.rlim_max - limit.rlim_cur);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace forestage
