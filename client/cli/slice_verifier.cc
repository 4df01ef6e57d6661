#include "client/cli/slice_verifier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "common/errno_status.h"
#include "common/file_open.h"
#include "common/file_time.h"
#include "common/interruptions.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr size_t kBufferBytes = kMiB;

// nullopt with errno.
std::optional<FileStamp> LookAtStamp(const std::string& path) {
  struct stat now = {};
  if (stat(path.c_str(), &now) != 0) return std::nullopt;
  return FileStamp{.device = now.st_dev,
                   .inode = now.st_ino,
                   .bytes = static_cast<uint64_t>(now.st_size),
                   .mtime_ns = NanosecondsOf(now.st_mtim),
                   .ctime_ns = NanosecondsOf(now.st_ctim),
                   .links = now.st_nlink};
}

}  // namespace

SliceVerifier::SliceVerifier(std::shared_ptr<const LocalCatalog> catalog)
    : catalog_(std::move(catalog)), buffer_(kBufferBytes) {
  for (const SelectedShard& shard : catalog_->selection().shards) {
    stamps_.push_back(LookAtStamp(shard.path));
  }
}

absl::Status SliceVerifier::OpenShard(size_t shard_index) {
  if (open_shard_ == shard_index) return absl::OkStatus();
  const std::string& path = catalog_->selection().shards[shard_index].path;
  open_shard_.reset();
  file_ = OpenForReading(path);
  if (!file_.valid()) {
    return ErrnoStatus(errno, absl::StrCat("cannot open ", LineText(path),
                                           ", which was there when the load began"));
  }
  open_shard_ = shard_index;
  return absl::OkStatus();
}

absl::Status SliceVerifier::CheckUnchanged(size_t shard_index) const {
  const std::string& path = catalog_->selection().shards[shard_index].path;
  const std::optional<FileStamp>& then = stamps_[shard_index];
  const std::optional<FileStamp> now = LookAtStamp(path);
  if (!now.has_value()) {
    return ErrnoStatus(errno, absl::StrCat("cannot look at ", LineText(path),
                                           ", which was there when the load began"));
  }
  if (!then.has_value() || FileChangeText(*then, *now).empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(FileChangedMessage(
      LineText(path), "the load began", *then, *now,
      "nobody can tell whether the right bytes were loaded: load again once nothing changes it"));
}

absl::StatusOr<std::optional<std::string>> SliceVerifier::FindDifference(
    const TensorInfo& tensor, absl::Span<const Range> rows, absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(std::optional<std::string> difference, Compare(tensor, rows, bytes));
  if (!difference.has_value()) return difference;
  if (const std::optional<size_t> index = catalog_->view().Find(tensor.name); index.has_value()) {
    RETURN_IF_ERROR(CheckUnchanged(catalog_->view().tensor(*index).shard_index));
    return difference;
  }
  for (size_t i = 0; i < stamps_.size(); ++i) RETURN_IF_ERROR(CheckUnchanged(i));
  return difference;
}

absl::StatusOr<std::optional<std::string>> SliceVerifier::Compare(
    const TensorInfo& tensor, absl::Span<const Range> rows, absl::Span<const std::byte> bytes) {
  const CatalogView& view = catalog_->view();
  const std::optional<size_t> index = view.Find(tensor.name);
  if (!index.has_value()) return "the files hold no tensor of this name";
  const TensorEntryView own = view.tensor(*index);
  if (DtypeName(own.dtype) != tensor.dtype || own.shape != tensor.shape)
    return "the file's header gives another dtype or shape";
  uint64_t begin = own.begin;
  uint64_t expected_bytes = own.end - own.begin;
  if (!rows.empty() && expected_bytes > 0) {
    // In bits: a row of a sub-byte type need not be whole bytes, a rank's part is.
    const auto row_bits = static_cast<unsigned __int128>(expected_bytes) * 8 / own.shape[0];
    begin += static_cast<uint64_t>(row_bits * rows[0].start / 8);
    expected_bytes = static_cast<uint64_t>(row_bits * (rows[0].stop - rows[0].start) / 8);
  }
  if (bytes.size() != expected_bytes)
    return absl::StrCat(bytes.size(), " bytes were delivered instead of ", expected_bytes);
  RETURN_IF_ERROR(OpenShard(own.shard_index));
  const std::string& path = catalog_->selection().shards[own.shard_index].path;
  Interruptions interruptions;
  for (size_t done = 0; done < bytes.size();) {
    const size_t wanted = std::min(buffer_.size(), bytes.size() - done);
    const ssize_t got =
        pread(file_.get(), buffer_.data(), wanted, static_cast<off_t>(begin + done));
    if (got < 0 && interruptions.MayRetry(errno)) continue;
    if (got < 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot read ", LineText(path), " at ", begin + done));
    }
    if (got == 0) return absl::StrCat(LineText(path), " ends at ", begin + done);
    const auto size = static_cast<size_t>(got);
    if (std::memcmp(buffer_.data(), bytes.data() + done, size) != 0) {
      const auto [a, b] =
          std::mismatch(buffer_.begin(), buffer_.begin() + got, bytes.begin() + done);
      const auto where = static_cast<size_t>(a - buffer_.begin());
      return absl::StrCat("differs from ", LineText(path), " at offset ", begin + done + where);
    }
    done += size;
  }
  return std::nullopt;
}

}  // namespace forestage
