#include "checkpoint/file_selection.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include <sys/mman.h>
#include <sys/stat.h>

#include "checkpoint/catalog_assembly.h"
#include "checkpoint/directory_listing.h"
#include "checkpoint/foreign_format.h"
#include "checkpoint/offender_list.h"
#include "checkpoint/shard_numbering.h"
#include "checkpoint/shard_survey.h"
#include "checkpoint/weight_index.h"
#include "common/check.h"
#include "common/errno_status.h"
#include "common/file_open.h"
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
// Where Hugging Face's programs keep the bytes of a file until they are all there.
constexpr absl::string_view kHuggingFaceUnfinished = ".incomplete";
constexpr char kFetchAdvice[] = "fetch what is missing or damaged again";
constexpr char kOutOfCountAdvice[] =
    "remove the shards of another checkpoint, or give the directory an index";
// Of a directory without safetensors so many files are looked into, to see what they are.
constexpr size_t kLookedIntoMax = 10'000;

bool IsSafetensors(absl::string_view name) { return absl::EndsWith(name, ".safetensors"); }

// Of a file that is on its way to become safetensors; empty for all others.
absl::string_view UnfinishedSuffix(absl::string_view name) {
  for (const absl::string_view suffix : kUnfinished) {
    absl::string_view stem = name;
    // Programs put a hash or a number between the two.
    if (absl::ConsumeSuffix(&stem, suffix) && absl::StrContains(stem, ".safetensors")) {
      return suffix;
    }
  }
  return "";
}

// The parts of a text that are there.
std::string JoinParts(std::vector<std::string> parts) {
  parts.erase(std::remove(parts.begin(), parts.end(), ""), parts.end());
  return absl::StrJoin(parts, "; ");
}

// Why a file that looks like safetensors is none; empty for all others.
std::string NearlySafetensors(absl::string_view name) {
  if (IsSafetensors(name)) return "";
  if (absl::EndsWithIgnoreCase(name, ".safetensors"))
    return "its name does not end in .safetensors in small letters";
  const absl::string_view suffix = UnfinishedSuffix(name);
  if (suffix.empty()) return "";
  return absl::StrCat("not finished: a program that writes or fetches it left a ", suffix, " file");
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
  // It may have become a FIFO since it was looked at.
  const UniqueFd fd = OpenForReading(path);
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
  // Some are not there.
  bool missing() const { return missing_; }
  std::string Text() const { return faults_.Text(); }
  absl::StatusCode code() const {
    if (missing_) return absl::StatusCode::kNotFound;
    return error_.ok() ? absl::StatusCode::kInvalidArgument : error_.code();
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

  // Everything that is wrong with the directory, one part after the other; empty ones are left out.
  absl::Status Refusal(absl::StatusCode code, std::vector<std::string> parts) const {
    parts.push_back(UnfinishedText());
    return absl::Status(
        code, absl::StrCat(QuotedPath(selection_.directory), ": ", JoinParts(std::move(parts))));
  }

  // Downloads that go on or were broken off: in the directory, and where Hugging Face's programs
  // keep them until they are finished.
  std::string UnfinishedText() const {
    OffenderList unfinished;
    for (const std::string& name : names_) {
      if (!UnfinishedSuffix(name).empty()) unfinished.Add(QuotedName(name));
    }
    for (const absl::string_view place : {"/.cache/huggingface/download", "/../../blobs"}) {
      const std::string directory = absl::StrCat(selection_.directory, place);
      if (LookAt(directory).kind != FileKind::kDirectory) continue;
      absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
      if (!names.ok()) continue;
      std::sort(names->begin(), names->end(), NaturalLess);
      for (const std::string& name : *names) {
        if (absl::EndsWith(name, kHuggingFaceUnfinished)) {
          unfinished.Add(QuotedPath(absl::StrCat(directory, "/", name)));
        }
      }
    }
    if (unfinished.empty()) return "";
    return absl::StrCat("not finished by the program that writes or fetches it: ",
                        unfinished.Text(), "; let it end, or fetch again");
  }

  // What is wrong with the shards that could be served, and with the names in them.
  std::string FurtherFaults() const {
    return ListOf(FaultsOf(selection_, ReadShards(selection_.shards)));
  }
  static std::string ListOf(absl::Span<const absl::Status> statuses) {
    OffenderList faults;
    for (const absl::Status& status : statuses) faults.Add(std::string(status.message()));
    return faults.empty() ? "" : absl::StrCat("and of the shards that are there: ", faults.Text());
  }

  // What is wrong with all that look like shards, where nobody can say which are, nor which of two
  // tensors of one name is meant.
  std::string FaultsByName() const {
    std::vector<std::string> names;
    std::vector<SelectedShard> regular;
    ShardFaults faults;
    for (const std::string& name : names_) {
      if (!IsSafetensors(name) || name.front() == '.') continue;
      const FileLook look = LookAt(PathOf(name));
      names.push_back(name);
      faults.Add(name, look);
      if (look.kind == FileKind::kRegular) regular.push_back({name, PathOf(name)});
    }
    std::vector<absl::Status> damaged;
    for (const ShardReading& reading : ReadShards(regular)) {
      if (!reading.ok()) damaged.push_back(reading.status());
    }
    return JoinParts({faults.Text(), NumberingText(CheckNumbering(names)), ListOf(damaged)});
  }

  static std::string NumberingText(const NumberingFaults& faults) {
    const auto text = [](const OffenderList& list, absl::string_view one, absl::string_view many) {
      return list.empty() ? "" : absl::StrCat(Counted(list.count(), one, many), ": ", list.Text());
    };
    return JoinParts(
        {text(faults.missing, "shard of a numbered set is missing",
              "shards of a numbered set are missing"),
         text(faults.out_of_count, "shard is there whose number its own name leaves no place for",
              "shards are there whose numbers their own names leave no place for")});
  }

  absl::Status SelectByIndex() {
    const std::string& index_name = selection_.index_name;
    ShardFaults index_faults;
    index_faults.Add(index_name, LookAt(PathOf(index_name)));
    if (!index_faults.empty()) {
      return Refusal(index_faults.code(),
                     {absl::StrCat("the index ", index_faults.Text()), FaultsByName()});
    }
    const absl::StatusOr<std::string> entry_faults = ReadIndex();
    if (!entry_faults.ok()) {
      return Refusal(entry_faults.status().code(),
                     {std::string(entry_faults.status().message()), FaultsByName()});
    }

    std::set<std::string, decltype(&NaturalLess)> shards(&NaturalLess);
    for (const std::string& shard : selection_.index.shards) {
      if (IsFileName(shard)) shards.insert(shard);
    }
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
    RETURN_IF_ERROR(CheckIndexed(shards.size(), *entry_faults, others, faults));
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

  // What is wrong with single entries; empty when nothing is.
  absl::StatusOr<std::string> ReadIndex() {
    const std::string& name = selection_.index_name;
    ASSIGN_OR_RETURN(IndexText text, ReadIndexFile(PathOf(name), name));
    ASSIGN_OR_RETURN(ParsedWeightIndex parsed,
                     ParseWeightIndex(text.text, std::move(text.owner), name));
    selection_.index = std::move(parsed.index);
    return parsed.faults;
  }

  // `others` are shards that are no safetensors by their names.
  absl::Status CheckIndexed(size_t shard_count, const std::string& entry_faults,
                            const OffenderList& others, const ShardFaults& faults) const {
    if (entry_faults.empty() && others.empty() && faults.empty()) return absl::OkStatus();
    const std::string& index_name = selection_.index_name;
    std::vector<std::string> parts;
    if (!entry_faults.empty()) {
      parts.push_back(absl::StrCat(index_name, ": ", entry_faults, "; fetch it again"));
    }
    if (!others.empty()) {
      parts.push_back(absl::StrCat(index_name,
                                   " names files that are no safetensors: ", others.Text(),
                                   "; they are not served yet: ", kForeignWeightsAdvice));
    }
    if (!faults.empty()) {
      parts.push_back(absl::StrCat("of the ", shard_count, " shards that ", index_name, " names, ",
                                   faults.Text()));
    }
    parts.push_back(FurtherFaults());
    if (faults.missing()) parts.push_back(kFetchAdvice);
    const absl::StatusCode code = !others.empty()   ? absl::StatusCode::kFailedPrecondition
                                  : !faults.empty() ? faults.code()
                                                    : absl::StatusCode::kInvalidArgument;
    return Refusal(code, std::move(parts));
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
      if (name.front() == '.') {
        Ignore(name, "a hidden file");
      } else if (LookAt(PathOf(name)).kind != FileKind::kMissing) {
        // Also what is no regular file: whoever gave it this name meant a shard.
        (IsConsolidated(name) ? consolidated : sharded).push_back(name);
      }
    }
    if (sharded.empty() && consolidated.empty()) return NothingToServe();
    const bool take_sharded =
        consolidated.empty() ||
        (!sharded.empty() && options_.preferred_layout == CheckpointLayout::kSharded);
    RETURN_IF_ERROR(TakeShards(take_sharded ? sharded : consolidated));
    for (const std::string& name : take_sharded ? consolidated : sharded) {
      IgnoreSafetensors(name, take_sharded
                                  ? "the consolidated layout, where the sharded one is taken"
                                  : "the sharded layout, where the consolidated one is taken");
    }
    for (const std::string& name : names_) {
      if (!IsSafetensors(name)) IgnoreIfWeightLike(name, "safetensors are beside it");
    }
    return absl::OkStatus();
  }

  absl::Status TakeShards(const std::vector<std::string>& names) {
    ShardFaults faults;
    for (const std::string& name : names) {
      const FileLook look = LookAt(PathOf(name));
      faults.Add(name, look);
      if (look.kind == FileKind::kRegular) AddShard(name);
    }
    const NumberingFaults numbering = CheckNumbering(names);
    if (faults.empty() && numbering.empty()) return absl::OkStatus();
    const bool fetch = faults.missing() || !numbering.missing.empty();
    return Refusal(
        faults.empty() ? absl::StatusCode::kFailedPrecondition : faults.code(),
        {faults.Text(), NumberingText(numbering), FurtherFaults(), fetch ? kFetchAdvice : "",
         numbering.out_of_count.empty() ? "" : kOutOfCountAdvice});
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
  FileSelection selection_;
};

}  // namespace

absl::StatusOr<FileSelection> SelectFiles(const std::string& directory,
                                          const SelectionOptions& options) {
  return FileSelector(directory, options).Select();
}

}  // namespace forestage
