// Files with a safetensors header, in memory, for tests.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include <sys/mman.h>

#include "checkpoint/catalog.h"
#include "common/check.h"
#include "common/unique_fd.h"

namespace forestage {

inline std::string LittleEndianForTest(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  return bytes;
}

// Length field, header, zero bytes.
inline std::string SafetensorsForTest(absl::string_view header, size_t data_bytes) {
  return LittleEndianForTest(header.size()) + std::string(header) + std::string(data_bytes, '\0');
}

inline absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// The shard of that name with this header and so many bytes of data, which must be sound.
inline CatalogShard CatalogShardForTest(std::string name, absl::string_view header,
                                        uint64_t data_bytes) {
  absl::StatusOr<SafetensorsHeader> parsed =
      ParseHeader(BytesOf(header), 8 + header.size() + data_bytes, name);
  CHECK(parsed.ok());
  return {.name = std::move(name), .mtime_ns = 1234, .header = *std::move(parsed)};
}

// An open regular file that holds `bytes`.
inline UniqueFd FileOfBytesForTest(absl::string_view bytes) {
  UniqueFd fd(memfd_create("safetensors", MFD_CLOEXEC));
  CHECK(fd.valid());
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(fd.get(), bytes.data() + done, bytes.size() - done);
    CHECK(written > 0);
    done += static_cast<size_t>(written);
  }
  return fd;
}

}  // namespace forestage
