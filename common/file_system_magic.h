// Types of file systems, as statfs names them in f_type.
#pragma once

#include <cstdint>

namespace forestage {

inline constexpr uint32_t kFuseMagic = 0x65735546;

}  // namespace forestage
