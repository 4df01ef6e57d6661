// Which mount a file was opened on, over time: device numbers and the old mount ids are given to
// the next mount at once.
#pragma once

#include <cstdint>
#include <optional>

namespace forestage {

// Never given to another mount as long as the machine runs. nullopt where the kernel does not say
// (Linux before 6.8). Asks no server.
std::optional<uint64_t> UniqueMountIdOf(int fd);

// Whether no mount of this id is in this process's mount namespace; one in another namespace, or
// none. False where nobody knows. Touches no file system.
bool MountIsGone(uint64_t unique_mount_id);

}  // namespace forestage
