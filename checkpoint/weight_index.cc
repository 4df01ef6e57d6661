#include "checkpoint/weight_index.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "simdjson.h"

#include "checkpoint/json_scanner.h"
#include "checkpoint/offender_list.h"

namespace forestage {
namespace {

using Kind = JsonScanner::Kind;
using Step = JsonScanner::Step;

// One pass over an index; what is wrong with single entries is collected, not thrown at the first.
class WeightIndexReader {
 public:
  explicit WeightIndexReader(absl::string_view text) : scanner_(text) {}

  // Empty when all is well, else what is wrong.
  std::string Read() {
    if (!ReadRoot()) return absl::StrCat("not a valid index: ", scanner_.error());
    if (!saw_weight_map_) return "not a valid index: it has no weight_map";
    if (not_strings_.empty() && entries_.empty()) return "its weight_map names no tensor";
    std::string wrong;
    FindRepeated();
    FindBadShards();
    Append("keys held twice", repeated_, &wrong);
    Append("values that are no file names", not_strings_, &wrong);
    Append("shards that are no file names in the directory", bad_shards_, &wrong);
    return wrong;
  }

  std::vector<IndexedTensor> TakeEntries() { return std::move(entries_); }

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
    absl::string_view text;
    Step step;
    while ((step = scanner_.NextKey(&text)) == Step::kItem) {
      IndexedTensor entry;
      entry.tensor.assign(text.data(), text.size());
      if (scanner_.Peek() != Kind::kString) {
        if (!scanner_.SkipValue()) return false;
        not_strings_.Add(QuotedName(entry.tensor));
        continue;
      }
      if (!scanner_.ReadString(&text)) return false;
      entry.shard.assign(text.data(), text.size());
      entries_.push_back(std::move(entry));
    }
    return step == Step::kEnd;
  }

  void FindRepeated() {
    std::stable_sort(
        entries_.begin(), entries_.end(),
        [](const IndexedTensor& a, const IndexedTensor& b) { return a.tensor < b.tensor; });
    for (size_t i = 1; i < entries_.size(); ++i) {
      const bool again = entries_[i].tensor == entries_[i - 1].tensor;
      const bool third = i > 1 && entries_[i].tensor == entries_[i - 2].tensor;
      if (again && !third) repeated_.Add(QuotedName(entries_[i].tensor));
    }
  }

  void FindBadShards() {
    std::set<absl::string_view> seen;
    for (const IndexedTensor& entry : entries_) {
      const absl::string_view shard = entry.shard;
      const bool bad = shard.empty() || shard == "." || shard == ".." ||
                       shard.find('/') != absl::string_view::npos ||
                       shard.find('\0') != absl::string_view::npos;
      if (bad && seen.insert(shard).second) {
        bad_shards_.Add(absl::StrCat(QuotedName(shard), " (for ", QuotedName(entry.tensor), ")"));
      }
    }
  }

  JsonScanner scanner_;
  bool saw_weight_map_ = false;
  std::vector<IndexedTensor> entries_;
  OffenderList repeated_;
  OffenderList not_strings_;
  OffenderList bad_shards_;
};

}  // namespace

absl::StatusOr<std::vector<IndexedTensor>> ParseWeightIndex(absl::string_view text,
                                                            absl::string_view index_name) {
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    return absl::InvalidArgumentError(absl::StrCat(index_name, ": not a valid index: not UTF-8"));
  }
  WeightIndexReader reader(text);
  const std::string wrong = reader.Read();
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat(index_name, ": ", wrong));
  return reader.TakeEntries();
}

}  // namespace forestage
