#include "client/cli/digest_line.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/name_escaping.h"

#include "checkpoint/sha256.h"

namespace forestage {

std::string Sha256Hex(absl::Span<const std::byte> bytes) {
  Sha256 sha256;
  sha256.Update(bytes);
  const Sha256Digest digest = sha256.Finish();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string DigestLine(uint32_t rank, absl::string_view tensor_name,
                       absl::Span<const std::byte> packed_bytes) {
  return absl::StrCat(rank, " ", EscapeName(tensor_name), " ", Sha256Hex(packed_bytes));
}

}  // namespace forestage
