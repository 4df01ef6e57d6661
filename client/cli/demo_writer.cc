#include "client/cli/demo_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr uint64_t kPieceBytes = 4 * kMiB;
constexpr uint64_t kHeaderAlignment = 8;
// Clears the top bit of each BF16 exponent.
constexpr uint64_t kFiniteMask = 0xbfffbfffbfffbfffull;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

// SplitMix64, by Steele, Lea and Flood: any word of the sequence without those before it.
uint64_t Mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
  return word ^ (word >> 31);
}

uint64_t SeedOf(absl::string_view name) {
  uint64_t seed = 0;
  for (char byte : name) seed = Mix(seed + kGolden + static_cast<uint8_t>(byte));
  return seed;
}

absl::Status WriteStatus(int error_number, const std::string& path) {
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", LineText(path), ": ", std::strerror(error_number),
                     "; free some space, choose another directory or a smaller --size"));
  }
  return ErrnoStatus(error_number, absl::StrCat("cannot write ", LineText(path)));
}

absl::StatusOr<UniqueFd> CreateFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return WriteStatus(errno, path);
  return file;
}

absl::Status WriteAll(int fd, const std::string& path, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteStatus(errno, path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const std::string& path, absl::string_view text) {
  return WriteAll(fd, path, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

absl::Status Sync(int fd, const std::string& path) {
  // EINVAL: this file system cannot, and needs not.
  if (fdatasync(fd) != 0 && errno != EINVAL) return WriteStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace

std::string MakeSafetensorsHeader(absl::Span<const DemoTensor> tensors) {
  Json header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (const DemoTensor& tensor : tensors) {
    const uint64_t end = offset + DemoTensorBytes(tensor);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(AlignUp(text.size(), kHeaderAlignment), ' ');
  std::string length;
  for (int shift = 0; shift < 64; shift += 8)
    length.push_back(static_cast<char>(text.size() >> shift & 0xff));
  return length + text;
}

void FillDemoBytes(absl::string_view tensor_name, uint64_t offset, absl::Span<std::byte> bytes) {
  uint64_t state = SeedOf(tensor_name) + offset / sizeof(uint64_t) * kGolden;
  size_t done = 0;
  while (done < bytes.size()) {
    state += kGolden;
    const uint64_t word = Mix(state) & kFiniteMask;
    std::memcpy(bytes.data() + done, &word, std::min(sizeof(word), bytes.size() - done));
    done += sizeof(word);
  }
}

absl::Status WriteDemoShard(const std::string& path, std::vector<DemoTensor> tensors,
                            const std::function<bool(uint64_t)>& advance) {
  std::sort(tensors.begin(), tensors.end(),
            [](const DemoTensor& a, const DemoTensor& b) { return a.name < b.name; });
  const std::string header = MakeSafetensorsHeader(tensors);
  uint64_t file_bytes = header.size();
  for (const DemoTensor& tensor : tensors) file_bytes += DemoTensorBytes(tensor);

  ASSIGN_OR_RETURN(const UniqueFd file, CreateFile(path));
  // Says at once that the disk is too small. Not every file system can.
  if (fallocate(file.get(), 0, 0, static_cast<off_t>(file_bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT))
    return WriteStatus(errno, path);
  RETURN_IF_ERROR(WriteAll(file.get(), path, header));
  std::vector<std::byte> buffer(kPieceBytes);
  for (const DemoTensor& tensor : tensors) {
    const uint64_t tensor_bytes = DemoTensorBytes(tensor);
    for (uint64_t offset = 0; offset < tensor_bytes; offset += kPieceBytes) {
      const uint64_t piece_bytes = std::min(kPieceBytes, tensor_bytes - offset);
      const absl::Span<std::byte> piece = absl::MakeSpan(buffer).first(piece_bytes);
      FillDemoBytes(tensor.name, offset, piece);
      RETURN_IF_ERROR(WriteAll(file.get(), path, piece));
      if (!advance(piece_bytes)) return absl::CancelledError("interrupted");
    }
  }
  return Sync(file.get(), path);
}

absl::Status WriteDemoText(const std::string& path, absl::string_view text) {
  ASSIGN_OR_RETURN(const UniqueFd file, CreateFile(path));
  RETURN_IF_ERROR(WriteAll(file.get(), path, text));
  return Sync(file.get(), path);
}

}  // namespace forestage
