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
#include "checkpoint/foreign_format.h"
#include "checkpoint/offender_list.h"
#include "checkpoint/shard_numbering.h"
#include "checkpoint/shard_survey.h"
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
// Of a directory without safetensors so many files are looked into, to see what they are.
constexpr size_t kLookedIntoMax = 10'000;

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
  // `further` is what else is wrong; may be empty.
  absl::Status ToStatus(absl::string_view introduction, absl::string_view further) const {
    const absl::StatusCode code = missing_       ? absl::StatusCode::kNotFound
                                  : !error_.ok() ? error_.code()
                                                 : absl::StatusCode::kInvalidArgument;
    return absl::Status(code, absl::StrCat(introduction, faults_.Text(), further));
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

  // What is wrong with shards that could be served: "; ..." behind an error about others.
  std::string FurtherFaults(absl::Span<const SelectedShard> shards) const {
    OffenderList faults;
    SurveyShards(shards, &faults);
    return faults.empty() ? ""
                          : absl::StrCat("; and of the shards that are there: ", faults.Text());
  }
  // All that look like shards, where nobody can say which are.
  std::string FurtherFaultsByName() const {
    std::vector<SelectedShard> shards;
    for (const std::string& name : names_) {
      if (!IsSafetensors(name) || name.front() == '.') continue;
      if (LookAt(PathOf(name)).kind == FileKind::kRegular) shards.push_back({name, PathOf(name)});
    }
    return FurtherFaults(shards);
  }

  absl::Status SelectByIndex() {
    const std::string& index_name = selection_.index_name;
    ShardFaults index_faults;
    index_faults.Add(index_name, LookAt(PathOf(index_name)));
    if (!index_faults.empty()) {
      return index_faults.ToStatus(absl::StrCat(QuotedPath(selection_.directory), ": the index "),
                                   FurtherFaultsByName());
    }
    absl::Status status = ReadIndex();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), FurtherFaultsByName()));
    }

    const std::set<std::string, decltype(&NaturalLess)> shards(
        selection_.index.shards.begin(), selection_.index.shards.end(), &NaturalLess);
    ShardFaults faults;
    OffenderList others;
    for (const std::string& shard : shards) {
      const FileLook look = LookAt(PathOf(shard));
      faults.Add(shard, look);
      if (IsOtherKind(shard)) {
        others.Add(WithContent(shard, LookInto(PathOf(shard))));
      } else if (look.kind == FileKind::kRegular) {
        AddShard(shard);
      }
    }
    RETURN_IF_ERROR(CheckIndexed(shards.size(), others, faults));
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

  absl::Status ReadIndex() {
    const std::string& name = selection_.index_name;
    ASSIGN_OR_RETURN(IndexText text, ReadIndexFile(PathOf(name), name));
    ASSIGN_OR_RETURN(selection_.index, ParseWeightIndex(text.text, std::move(text.owner), name));
    return absl::OkStatus();
  }

  // `others` are shards that are no safetensors by their names.
  absl::Status CheckIndexed(size_t shard_count, const OffenderList& others,
                            const ShardFaults& faults) const {
    if (others.empty() && faults.empty()) return absl::OkStatus();
    const std::string directory = QuotedPath(selection_.directory);
    const std::string missing =
        absl::StrCat("of the ", shard_count, " shards that ", selection_.index_name, " names, ");
    const std::string further = FurtherFaults(selection_.shards);
    if (others.empty()) return faults.ToStatus(absl::StrCat(directory, ": ", missing), further);
    return absl::FailedPreconditionError(absl::StrCat(
        directory, ": ", selection_.index_name,
        " names files that are no safetensors: ", others.Text(),
        "; they are not served yet: ", kForeignWeightsAdvice, faults.empty() ? "" : "; ",
        faults.empty() ? "" : faults.ToStatus(missing, "").message(), further));
  }

  // "'pytorch_model.bin' (a zip archive as torch.save writes it)".
  static std::string WithContent(absl::string_view name, const FileContent& content) {
    if (content.text.empty()) return QuotedName(name);
    return absl::StrCat(QuotedName(name), " (", content.text, ")");
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
        odd_names_.push_back(name);
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

  // With what is no regular file, when it stands in the place of a numbered shard: that shard is
  // not missing.
  std::vector<std::string> WithOddShards(const std::vector<std::string>& names) const {
    std::vector<std::string> all = names;
    all.insert(all.end(), odd_names_.begin(), odd_names_.end());
    return MissingShards(all).count() < MissingShards(names).count() ? all : names;
  }

  absl::Status TakeShards(const std::vector<std::string>& regular_names) {
    const std::vector<std::string> names = WithOddShards(regular_names);
    ShardFaults faults;
    for (const std::string& name : names) {
      const FileLook look = LookAt(PathOf(name));
      faults.Add(name, look);
      if (look.kind == FileKind::kRegular) AddShard(name);
    }
    const OffenderList missing = MissingShards(names);
    if (faults.empty() && missing.empty()) return absl::OkStatus();
    const std::string directory = absl::StrCat(QuotedPath(selection_.directory), ": ");
    std::string further = FurtherFaults(selection_.shards);
    if (missing.empty()) return faults.ToStatus(directory, further);
    const std::string gaps =
        absl::StrCat(missing.count(),
                     missing.count() == 1 ? " shard of a numbered set is missing: "
                                          : " shards of a numbered set are missing: ",
                     missing.Text());
    if (!faults.empty()) return faults.ToStatus(directory, absl::StrCat("; ", gaps, further));
    return absl::FailedPreconditionError(absl::StrCat(directory, gaps, further));
  }

  absl::Status NothingToServe() const {
    OffenderList others;
    OffenderList unusable;
    size_t looked_into = 0;
    for (const std::string& name : names_) {
      if (const std::string nearly = NearlySafetensors(name); !nearly.empty()) {
        unusable.Add(absl::StrCat(QuotedName(name), " (", nearly, ")"));
        continue;
      }
      if (name.front() == '.' || IsSafetensors(name) || ++looked_into > kLookedIntoMax) continue;
      const FileLook look = LookAt(PathOf(name));
      if (look.kind == FileKind::kDangling && IsOtherKind(name)) {
        unusable.Add(absl::StrCat(QuotedName(name), " (", DanglingText(look), ")"));
      }
      if (look.kind != FileKind::kRegular && look.kind != FileKind::kUnknown) continue;
      // The content decides; a name alone only where nothing is known of the content.
      const FileContent content = LookInto(PathOf(name));
      const bool weights = content.kind == ContentKind::kForeignWeights ||
                           (content.kind == ContentKind::kUnknown && IsOtherKind(name));
      if (weights) {
        others.Add(WithContent(name, content));
      } else if (content.kind == ContentKind::kSafetensors) {
        unusable.Add(absl::StrCat(QuotedName(name), " (", content.text,
                                  ", but its name does not end in .safetensors: rename it)"));
      } else if (IsOtherKind(name)) {
        unusable.Add(WithContent(name, content));
      }
    }
    for (const IgnoredFile& file : selection_.ignored) {
      unusable.Add(absl::StrCat(QuotedName(file.name), " (", file.reason, ")"));
    }
    return NothingToServe(others, unusable);
  }

  absl::Status NothingToServe(const OffenderList& others, const OffenderList& unusable) const {
    const std::string directory = QuotedPath(selection_.directory);
    std::string further;
    if (!unusable.empty()) further = absl::StrCat("; not usable: ", unusable.Text());
    if (!others.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          directory, ": only weights of kinds that are not served yet: ", others.Text(), "; ",
          kForeignWeightsAdvice, further));
    }
    std::string what = absl::StrCat(directory, ": no weights in it (*.safetensors)", further);
    if (std::find(names_.begin(), names_.end(), "snapshots") != names_.end()) {
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
  // Named like shards, but no regular files.
  std::vector<std::string> odd_names_;
  FileSelection selection_;
};

}  // namespace

absl::StatusOr<FileSelection> SelectFiles(const std::string& directory,
                                          const SelectionOptions& options) {
  return FileSelector(directory, options).Select();
}

}  // namespace forestage
