#include "common/units.h"

#include <unistd.h>

namespace forestage {

uint64_t PageBytes() {
  static const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return page_bytes;
}

}  // namespace forestage
