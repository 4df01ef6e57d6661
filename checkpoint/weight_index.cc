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

// One pass over an index; what is wrong with single entries is collected, not thrown at the first.
class WeightIndexReader {
 public:
  // `names` outlives the reader.
  explicit WeightIndexReader(Names& names) : names_(names), scanner_(names.text) {}

  // Empty when all is well, else what is wrong.
  std::string Read() {
    if (!ReadRoot()) return absl::StrCat("not a valid index: ", scanner_.error());
    if (!saw_weight_map_) return "not a valid index: it has no weight_map";
    if (not_strings_.empty() && index_.entries.empty()) return "its weight_map names no tensor";
    // Names held twice are found where all names are looked up anyway; here they only join others.
    if (not_strings_.empty() && bad_shards_.empty()) return "";
    std::string wrong;
    FindRepeated();
    Append("keys held twice", repeated_, &wrong);
    Append("values that are no file names", not_strings_, &wrong);
    Append("shards that are no file names in the directory", bad_shards_, &wrong);
    return wrong;
  }

  WeightIndex TakeIndex() { return std::move(index_); }

 private:
  static void Append(absl::string_view what, const OffenderList& offenders, std::string* wrong) {
    if (offenders.empty()) return;
    absl::StrAppend(wrong, wrong->empty() ? "" : "; ", offenders.count(), " ", what, ": ",
                    offenders.Text());
  }

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
    const bool bad = shard.empty() || shard == "." || shard == ".." ||
                     shard.find('/') != absl::string_view::npos ||
                     shard.find('\0') != absl::string_view::npos;
    if (!bad) return;
    bad_shards_.Add(absl::StrCat(QuotedName(shard), " (for ", QuotedName(tensor), ")"));
  }

  void FindRepeated() {
    std::vector<absl::string_view> names;
    names.reserve(index_.entries.size());
    for (const WeightIndex::Entry& entry : index_.entries) names.push_back(entry.tensor);
    std::sort(names.begin(), names.end());
    for (size_t i = 1; i < names.size(); ++i) {
      const bool again = names[i] == names[i - 1];
      const bool third = i > 1 && names[i] == names[i - 2];
      if (again && !third) repeated_.Add(QuotedName(names[i]));
    }
  }

  Names& names_;
  JsonScanner scanner_;
  bool saw_weight_map_ = false;
  WeightIndex index_;
  // Of the last entry, as it stands in the text; empty when it had escapes.
  absl::string_view last_shard_;
  absl::flat_hash_map<std::string, uint32_t> shard_indexes_;
  OffenderList repeated_;
  OffenderList not_strings_;
  OffenderList bad_shards_;
};

}  // namespace

absl::StatusOr<WeightIndex> ParseWeightIndex(absl::string_view text,
                                             std::shared_ptr<const void> owner,
                                             absl::string_view index_name) {
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    return absl::InvalidArgumentError(absl::StrCat(index_name, ": not a valid index: not UTF-8"));
  }
  auto names = std::make_shared<Names>();
  names->text_owner = std::move(owner);
  names->text = text;
  WeightIndexReader reader(*names);
  const std::string wrong = reader.Read();
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat(index_name, ": ", wrong));
  WeightIndex index = reader.TakeIndex();
  index.owner = std::move(names);
  return index;
}

}  // namespace forestage
