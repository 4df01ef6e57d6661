#include "checkpoint/file_selection.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <sys/mman.h>
#include <sys/stat.h>

#include "checkpoint/directory_listing.h"
#include "checkpoint/offender_list.h"
#include "checkpoint/shard_numbering.h"
#include "checkpoint/weight_index.h"
#include "common/check.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace forestage {
namespace {

// In the order in which they are asked for.
constexpr absl::string_view kIndexNames[] = {"model.safetensors.index.json",
                                             "consolidated.safetensors.index.json"};
// Weights of kinds that are not served.
constexpr absl::string_view kOtherKinds[] = {".bin",  ".pth", ".pt",      ".ckpt",
                                             ".gguf", ".h5",  ".msgpack", ".npz"};
// What programs add to the name of a file that is not all there yet.
constexpr absl::string_view kUnfinished[] = {".partial", ".incomplete", ".part",
                                             ".tmp",     ".download",   ".crdownload"};
constexpr absl::string_view kConvert =
    "convert them to safetensors, for instance by save_pretrained(..., safe_serialization=True)";

bool IsSafetensors(absl::string_view name) { return absl::EndsWith(name, ".safetensors"); }

// Why a file that looks like safetensors is none; empty for all others.
std::string NearlySafetensors(absl::string_view name) {
  if (IsSafetensors(name)) return "";
  if (absl::EndsWithIgnoreCase(name, ".safetensors"))
    return "its name does not end in .safetensors in small letters";
  for (const absl::string_view suffix : kUnfinished) {
    absl::string_view stem = name;
    // Programs put a hash or a number between the two.
    if (absl::ConsumeSuffix(&stem, suffix) && absl::StrContains(stem, ".safetensors"))
      return absl::StrCat("not finished: a program that writes or fetches it left a ", suffix,
                          " file");
  }
  return "";
}

bool IsIndex(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors.index.json") || absl::EndsWith(name, ".bin.index.json");
}

bool IsOtherKind(absl::string_view name) {
  return std::any_of(std::begin(kOtherKinds), std::end(kOtherKinds),
                     [name](absl::string_view suffix) { return absl::EndsWith(name, suffix); });
}

bool IsConsolidated(absl::string_view name) { return absl::StrContains(name, "consolidated"); }

struct IndexText {
  std::shared_ptr<const char[]> owner;
  absl::string_view text;
};

// Room for a text. A large one lies in huge pages, since thousands of small ones cost more than to
// read it.
std::shared_ptr<char[]> TextBuffer(size_t bytes) {
  constexpr size_t kHugePageBytes = 2 * kMiB;
  if (bytes < kHugePageBytes) return std::shared_ptr<char[]>(new char[bytes]);
  const size_t rounded = AlignUp(bytes, kHugePageBytes);
  auto* const text = static_cast<char*>(std::aligned_alloc(kHugePageBytes, rounded));
  CHECK(text != nullptr);
  (void)madvise(text, rounded, MADV_HUGEPAGE);
  return std::shared_ptr<char[]>(text, &std::free);
}

absl::StatusOr<IndexText> ReadIndexFile(const std::string& path, absl::string_view name) {
  // Not blocking, should it have become a FIFO since it was looked at.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat(QuotedName(name), ": open"));
  struct stat status;
  if (fstat(fd.get(), &status) != 0)
    return ErrnoStatus(errno, absl::StrCat(QuotedName(name), ": fstat"));
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedName(name), ": not a regular file"));
  }
  if (static_cast<uint64_t>(status.st_size) > kIndexBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedName(name), ": an index of ",
                                                   status.st_size, " bytes; at most ",
                                                   kIndexBytesMax, " are read"));
  }
  // Not initialised: a large one has 15 MB, and all of it is read.
  const size_t bytes = static_cast<size_t>(status.st_size);
  const std::shared_ptr<char[]> text = TextBuffer(bytes);
  size_t done = 0;
  Interruptions interruptions;
  while (done < bytes) {
    const ssize_t got = read(fd.get(), text.get() + done, bytes - done);
    if (got < 0 && interruptions.MayRetry(errno)) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat(QuotedName(name), ": read"));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return IndexText{.owner = text, .text = absl::string_view(text.get(), done)};
}

// What is wrong with files that must be there, all of them, and the code that fits.
class ShardFaults {
 public:
  // Remembers the fault of a file that is no regular file.
  void Add(absl::string_view name, const FileLook& look) {
    switch (look.kind) {
      case FileKind::kRegular:
        return;
      case FileKind::kMissing:
        missing_ = true;
        faults_.Add(absl::StrCat(QuotedName(name), " is missing"));
        return;
      case FileKind::kDangling:
        missing_ = true;
        faults_.Add(absl::StrCat(QuotedName(name), " is ", DanglingText(look)));
        return;
      case FileKind::kUnknown:
        if (error_.ok()) error_ = ErrnoStatus(look.error_number, "");
        faults_.Add(std::string(
            ErrnoStatus(look.error_number, absl::StrCat(QuotedName(name), " cannot be looked at"))
                .message()));
        return;
      default:
        faults_.Add(absl::StrCat(QuotedName(name), " is ", FileKindName(look.kind),
                                 ", not a regular file"));
    }
  }

  bool empty() const { return faults_.empty(); }
  absl::Status ToStatus(absl::string_view introduction) const {
    const absl::StatusCode code = missing_       ? absl::StatusCode::kNotFound
                                  : !error_.ok() ? error_.code()
                                                 : absl::StatusCode::kInvalidArgument;
    return absl::Status(code, absl::StrCat(introduction, faults_.Text()));
  }

 private:
  OffenderList faults_;
  bool missing_ = false;
  absl::Status error_;
};

// Selects the files of one directory, once.
class FileSelector {
 public:
  FileSelector(const std::string& directory, const SelectionOptions& options) : options_(options) {
    selection_.directory = directory;
  }

  absl::StatusOr<FileSelection> Select() {
    ASSIGN_OR_RETURN(names_, ListDirectory(selection_.directory));
    std::sort(names_.begin(), names_.end(), NaturalLess);
    for (const absl::string_view index : kIndexNames) {
      if (std::find(names_.begin(), names_.end(), index) == names_.end()) continue;
      selection_.index_name = std::string(index);
      break;
    }
    RETURN_IF_ERROR(selection_.index_name.empty() ? SelectByNames() : SelectByIndex());
    std::sort(
        selection_.ignored.begin(), selection_.ignored.end(),
        [](const IgnoredFile& a, const IgnoredFile& b) { return NaturalLess(a.name, b.name); });
    return std::move(selection_);
  }

 private:
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(selection_.directory, "/", name);
  }
  void AddShard(absl::string_view name) {
    selection_.shards.push_back({std::string(name), PathOf(name)});
  }
  void Ignore(absl::string_view name, absl::string_view reason) {
    selection_.ignored.push_back({std::string(name), std::string(reason)});
  }

  absl::Status SelectByIndex() {
    const std::string& index_name = selection_.index_name;
    ShardFaults index_faults;
    index_faults.Add(index_name, LookAt(PathOf(index_name)));
    if (!index_faults.empty()) {
      return index_faults.ToStatus(absl::StrCat(QuotedPath(selection_.directory), ": the index "));
    }
    ASSIGN_OR_RETURN(IndexText text, ReadIndexFile(PathOf(index_name), index_name));
    ASSIGN_OR_RETURN(selection_.index,
                     ParseWeightIndex(text.text, std::move(text.owner), index_name));

    const std::set<std::string, decltype(&NaturalLess)> shards(
        selection_.index.shards.begin(), selection_.index.shards.end(), &NaturalLess);
    RETURN_IF_ERROR(CheckIndexedKinds(shards));
    ShardFaults faults;
    for (const std::string& shard : shards) {
      const FileLook look = LookAt(PathOf(shard));
      faults.Add(shard, look);
      if (look.kind == FileKind::kRegular) AddShard(shard);
    }
    if (!faults.empty()) {
      return faults.ToStatus(absl::StrCat(QuotedPath(selection_.directory), ": of the ",
                                          shards.size(), " shards that ", index_name, " names, "));
    }
    for (const std::string& name : names_) {
      if (shards.count(name) > 0 || name == index_name) continue;
      if (IsSafetensors(name)) {
        IgnoreSafetensors(name, absl::StrCat("not named by ", index_name));
      } else {
        IgnoreIfWeightLike(name, absl::StrCat(index_name, " decides"));
      }
    }
    return absl::OkStatus();
  }

  template <typename Names>
  absl::Status CheckIndexedKinds(const Names& shards) const {
    OffenderList others;
    for (const std::string& shard : shards) {
      if (IsOtherKind(shard)) others.Add(QuotedName(shard));
    }
    if (others.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(QuotedPath(selection_.directory), ": ", selection_.index_name,
                     " names files that are no safetensors: ", others.Text(), "; ", kConvert));
  }

  absl::Status SelectByNames() {
    std::vector<std::string> sharded;
    std::vector<std::string> consolidated;
    for (const std::string& name : names_) {
      if (!IsSafetensors(name)) continue;
      const FileLook look = LookAt(PathOf(name));
      if (name.front() == '.') {
        Ignore(name, "a hidden file");
      } else if (look.kind == FileKind::kRegular || look.kind == FileKind::kDangling ||
                 look.kind == FileKind::kUnknown) {
        (IsConsolidated(name) ? consolidated : sharded).push_back(name);
      } else if (look.kind != FileKind::kMissing) {
        Ignore(name, absl::StrCat(FileKindName(look.kind), ", not a regular file"));
      }
    }
    if (sharded.empty() && consolidated.empty()) return NothingToServe();
    const bool take_sharded =
        consolidated.empty() ||
        (!sharded.empty() && options_.preferred_layout == CheckpointLayout::kSharded);
    RETURN_IF_ERROR(TakeShards(take_sharded ? sharded : consolidated));
    for (const std::string& name : take_sharded ? consolidated : sharded) {
      Ignore(name, take_sharded ? "the consolidated layout, where the sharded one is taken"
                                : "the sharded layout, where the consolidated one is taken");
    }
    for (const std::string& name : names_) {
      if (!IsSafetensors(name)) IgnoreIfWeightLike(name, "safetensors are beside it");
    }
    return absl::OkStatus();
  }

  absl::Status TakeShards(const std::vector<std::string>& names) {
    ShardFaults faults;
    for (const std::string& name : names) faults.Add(name, LookAt(PathOf(name)));
    if (!faults.empty()) {
      return faults.ToStatus(absl::StrCat(QuotedPath(selection_.directory), ": "));
    }
    const OffenderList missing = MissingShards(names);
    if (!missing.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(QuotedPath(selection_.directory), ": ", missing.count(),
                       " shards of a numbered set are missing: ", missing.Text()));
    }
    for (const std::string& name : names) AddShard(name);
    return absl::OkStatus();
  }

  absl::Status NothingToServe() const {
    OffenderList others;
    OffenderList unusable;
    bool has_snapshots = false;
    for (const std::string& name : names_) {
      if (IsOtherKind(name)) others.Add(QuotedName(name));
      if (const std::string nearly = NearlySafetensors(name); !nearly.empty())
        unusable.Add(absl::StrCat(QuotedName(name), " (", nearly, ")"));
      has_snapshots = has_snapshots || name == "snapshots";
    }
    for (const IgnoredFile& file : selection_.ignored) {
      unusable.Add(absl::StrCat(QuotedName(file.name), " (", file.reason, ")"));
    }
    const std::string directory = QuotedPath(selection_.directory);
    if (!others.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory, ": only weights of kinds that are not served: ", others.Text(),
                       "; ", kConvert));
    }
    std::string what = absl::StrCat(directory, ": no weights in it (*.safetensors)");
    if (!unusable.empty()) absl::StrAppend(&what, "; not usable: ", unusable.Text());
    if (has_snapshots) {
      absl::StrAppend(&what,
                      "; this is an entry of a Hugging Face cache: name one of the directories "
                      "in its snapshots/");
    }
    return absl::NotFoundError(what);
  }

  // A *.safetensors file that is not served. Says first what makes it unusable anyway.
  void IgnoreSafetensors(const std::string& name, absl::string_view reason) {
    const FileLook look = LookAt(PathOf(name));
    if (look.kind == FileKind::kMissing) return;
    if (look.kind == FileKind::kRegular || look.kind == FileKind::kUnknown) {
      Ignore(name, reason);
    } else if (look.kind == FileKind::kDangling) {
      Ignore(name, absl::StrCat(reason, "; ", DanglingText(look)));
    } else {
      Ignore(name, absl::StrCat(FileKindName(look.kind), ", not a regular file"));
    }
  }

  void IgnoreIfWeightLike(const std::string& name, absl::string_view why) {
    const bool index = IsIndex(name);
    const std::string nearly = NearlySafetensors(name);
    if (!index && !IsOtherKind(name) && nearly.empty()) return;
    if (LookAt(PathOf(name)).kind == FileKind::kDirectory) return;
    if (!nearly.empty()) return Ignore(name, nearly);
    Ignore(name, absl::StrCat(index ? "an index that is not used: " : "not safetensors: ", why));
  }

  const SelectionOptions options_;
  // In natural order.
  std::vector<std::string> names_;
  FileSelection selection_;
};

}  // namespace

absl::StatusOr<FileSelection> SelectFiles(const std::string& directory,
                                          const SelectionOptions& options) {
  return FileSelector(directory, options).Select();
}

}  // namespace forestage
