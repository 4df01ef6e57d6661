#include "checkpoint/weight_index.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "simdjson.h"

#include "checkpoint/foreign_format.h"
#include "checkpoint/json_scanner.h"
#include "checkpoint/offender_list.h"

namespace forestage {
namespace {

using Kind = JsonScanner::Kind;
using Step = JsonScanner::Step;

// Room for so many entries is made at once, by what an entry has of text at least in large models.
constexpr size_t kEntryBytesMin = 64;

// Where the names of tensors lie: the text, and what had escapes in it.
struct Names {
  std::shared_ptr<const void> text_owner;
  absl::string_view text;
  // A deque's strings stay where they are.
  std::deque<std::string> unescaped;
};

// One pass over an index; what is wrong with single entries is collected.
class WeightIndexReader {
 public:
  // `names` outlives the reader.
  explicit WeightIndexReader(Names& names) : names_(names), scanner_(names.text) {}

  // Why it is no index; empty when it is one.
  std::string Read() {
    if (!ReadRoot()) return absl::StrCat("not a valid index: ", scanner_.error());
    if (!saw_weight_map_) return "not a valid index: it has no weight_map";
    if (not_strings_.empty() && index_.entries.empty()) return "its weight_map names no tensor";
    return "";
  }

  // What is wrong with single entries.
  std::string Faults() const {
    std::string faults;
    if (!not_strings_.empty()) {
      absl::StrAppend(&faults,
                      Counted(not_strings_.count(), "value that is no file name",
                              "values that are no file names"),
                      ": ", not_strings_.Text());
    }
    if (!bad_shards_.empty()) {
      absl::StrAppend(&faults, faults.empty() ? "" : "; ",
                      Counted(bad_shards_.count(), "shard that is no file name in the directory",
                              "shards that are no file names in the directory"),
                      ": ", bad_shards_.Text());
    }
    return faults;
  }

  WeightIndex TakeIndex() { return std::move(index_); }

 private:
  bool ReadRoot() {
    if (!scanner_.BeginObject()) return false;
    absl::string_view key;
    Step step;
    while ((step = scanner_.NextKey(&key)) == Step::kItem) {
      if (!(key == "weight_map" ? ReadWeightMap() : scanner_.SkipValue())) return false;
    }
    return step == Step::kEnd && scanner_.ReadEnd();
  }

  bool ReadWeightMap() {
    if (saw_weight_map_) return scanner_.Fail("a second weight_map");
    saw_weight_map_ = true;
    if (!scanner_.BeginObject()) return false;
    index_.entries.reserve(names_.text.size() / kEntryBytesMin);
    absl::string_view text;
    Step step;
    while ((step = scanner_.NextKey(&text)) == Step::kItem) {
      const absl::string_view tensor = Keep(text);
      if (scanner_.Peek() != Kind::kString) {
        if (!scanner_.SkipValue()) return false;
        not_strings_.Add(QuotedName(tensor));
        continue;
      }
      // Neighbours mostly lie in one shard.
      if (!last_shard_.empty() && scanner_.SkipString(last_shard_)) {
        index_.entries.push_back({.tensor = tensor, .shard = index_.entries.back().shard});
        continue;
      }
      if (!scanner_.ReadString(&text)) return false;
      last_shard_ = LiesInText(text) ? text : absl::string_view();
      index_.entries.push_back({.tensor = tensor, .shard = ShardIndex(text, tensor)});
    }
    return step == Step::kEnd;
  }

  // It had no escapes.
  bool LiesInText(absl::string_view name) const {
    const absl::string_view text = names_.text;
    return std::less_equal<>()(text.data(), name.data()) &&
           std::less_equal<>()(name.data(), text.data() + text.size());
  }

  // The same name, valid as long as `names_`.
  absl::string_view Keep(absl::string_view name) {
    return LiesInText(name) ? name : absl::string_view(names_.unescaped.emplace_back(name));
  }

  uint32_t ShardIndex(absl::string_view name, absl::string_view tensor) {
    const auto [found, inserted] =
        shard_indexes_.try_emplace(name, static_cast<uint32_t>(index_.shards.size()));
    if (inserted) {
      index_.shards.emplace_back(name);
      CheckShard(name, tensor);
    }
    return found->second;
  }

  void CheckShard(absl::string_view shard, absl::string_view tensor) {
    if (IsFileName(shard)) return;
    bad_shards_.Add(absl::StrCat(QuotedName(shard), " (for ", QuotedName(tensor), ")"));
  }

  Names& names_;
  JsonScanner scanner_;
  bool saw_weight_map_ = false;
  WeightIndex index_;
  // Of the last entry, as it stands in the text; empty when it had escapes.
  absl::string_view last_shard_;
  absl::flat_hash_map<std::string, uint32_t> shard_indexes_;
  OffenderList not_strings_;
  OffenderList bad_shards_;
};

}  // namespace

absl::StatusOr<ParsedWeightIndex> ParseWeightIndex(absl::string_view text,
                                                   std::shared_ptr<const void> owner,
                                                   absl::string_view index_name) {
  auto names = std::make_shared<Names>();
  names->text_owner = std::move(owner);
  names->text = text;
  WeightIndexReader reader(*names);
  const bool utf8 = simdjson::validate_utf8(text.data(), text.size());
  const std::string wrong = utf8 ? reader.Read() : "not a valid index: not UTF-8";
  if (!wrong.empty()) {
    const std::string content =
        DescribeForeignFormat(text.substr(0, kForeignFormatBytes), text.size());
    return absl::InvalidArgumentError(absl::StrCat(
        index_name, ": ", wrong, content.empty() ? "" : absl::StrCat(": this is ", content)));
  }
  ParsedWeightIndex parsed;
  parsed.faults = reader.Faults();
  parsed.index = reader.TakeIndex();
  parsed.index.owner = std::move(names);
  return parsed;
}

bool IsFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
}

OffenderList RepeatedKeys(const WeightIndex& index) {
  OffenderList repeated;
  std::vector<absl::string_view> names;
  names.reserve(index.entries.size());
  for (const WeightIndex::Entry& entry : index.entries) names.push_back(entry.tensor);
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i) {
    const bool again = names[i] == names[i - 1];
    const bool third = i > 1 && names[i] == names[i - 2];
    if (again && !third) repeated.Add(QuotedName(names[i]));
  }
  return repeated;
}

}  // namespace forestage
