#include "checkpoint/name_resolution.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "checkpoint/offender_list.h"
#include "checkpoint/weight_index.h"
#include "common/error_list.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// Finds names one after the other. An index mostly has the order of the files or of the alphabet,
// so that the next name is where the last one's neighbour is. Of repeated names any is found.
class NeighbourFinder {
 public:
  explicit NeighbourFinder(const CatalogView& catalog) : catalog_(catalog) {}

  std::optional<size_t> Find(absl::string_view name) {
    const size_t count = catalog_.tensor_count();
    const size_t in_alphabet =
        next_position_ < count ? catalog_.alphabetical(next_position_) : count;
    for (const size_t index : {next_, in_alphabet}) {
      if (index >= count || catalog_.tensor_name(index) != name) continue;
      if (index == in_alphabet) ++next_position_;
      next_ = index + 1;
      return index;
    }
    // Two binary searches are one whose position is known.
    const size_t position = catalog_.PrefixRange(name).first;
    if (position == count) return std::nullopt;
    const size_t index = catalog_.alphabetical(position);
    if (catalog_.tensor_name(index) != name) return std::nullopt;
    next_position_ = position + 1;
    next_ = index + 1;
    return index;
  }

 private:
  const CatalogView& catalog_;
  size_t next_ = 0;
  size_t next_position_ = 0;
};

class NameResolver {
 public:
  // Both outlive the resolver.
  NameResolver(const FileSelection& selection, const CatalogView& catalog)
      : selection_(selection),
        catalog_(catalog),
        catalog_shards_(selection.index.shards.size(), catalog.shard_count()),
        keys_(catalog.tensor_count(), 0) {
    const std::vector<std::string>& shards = selection.index.shards;
    for (size_t i = 0; i < catalog.shard_count(); ++i) {
      const auto found = std::find(shards.begin(), shards.end(), catalog.shard(i).name);
      if (found != shards.end()) catalog_shards_[static_cast<size_t>(found - shards.begin())] = i;
    }
  }

  absl::StatusOr<std::vector<uint32_t>> Resolve() {
    NeighbourFinder finder(catalog_);
    for (const WeightIndex::Entry& entry : selection_.index.entries) {
      Read(entry, finder.Find(entry.tensor));
    }
    OffenderList undecided;
    std::vector<uint32_t> ignored;
    if (catalog_.has_repeated_names()) Decide(&undecided, &ignored);
    RETURN_IF_ERROR(JoinErrors({IndexError(), UndecidedError(undecided)}));
    std::sort(ignored.begin(), ignored.end());
    return ignored;
  }

 private:
  // The alphabetical positions of a name that is there.
  std::pair<size_t, size_t> PositionsOf(absl::string_view name) const {
    const size_t first = catalog_.PrefixRange(name).first;
    size_t last = first + 1;
    while (last < catalog_.tensor_count() && NameAt(last) == name) ++last;
    return {first, last};
  }
  absl::string_view NameAt(size_t position) const {
    return catalog_.tensor_name(catalog_.alphabetical(position));
  }
  // "'a', 'b'".
  std::string HoldersText(size_t first, size_t last) const {
    std::vector<std::string> holders;
    for (size_t position = first; position < last; ++position) {
      const uint32_t shard = catalog_.shard_of(catalog_.alphabetical(position));
      holders.push_back(QuotedName(catalog_.shard(shard).name));
    }
    return absl::StrJoin(holders, ", ");
  }

  // `found` is a tensor of that name.
  void Read(const WeightIndex::Entry& entry, std::optional<size_t> found) {
    const size_t shard = catalog_shards_[entry.shard];
    const bool shard_is_there = shard < catalog_.shard_count();
    if (!found.has_value()) {
      if (shard_is_there) AddMisplaced(entry, "");
      return;
    }
    if (!catalog_.has_repeated_names()) {
      CountKey(*found, entry);
      if (!shard_is_there || catalog_.shard_of(*found) == shard) return;
      AddMisplaced(entry, QuotedName(catalog_.shard(catalog_.shard_of(*found)).name));
      return;
    }
    const auto [first, last] = PositionsOf(entry.tensor);
    CountKey(catalog_.alphabetical(first), entry);
    size_t chosen = catalog_.tensor_count();
    for (size_t position = first; position < last; ++position) {
      const size_t index = catalog_.alphabetical(position);
      if (catalog_.shard_of(index) == shard) chosen = index;
    }
    if (last - first > 1) chosen_[first] = chosen;
    if (shard_is_there && chosen == catalog_.tensor_count()) {
      AddMisplaced(entry, HoldersText(first, last));
    }
  }

  void CountKey(size_t tensor, const WeightIndex::Entry& entry) {
    if (keys_[tensor] == 1) repeated_keys_.Add(QuotedName(entry.tensor));
    if (keys_[tensor] < 2) ++keys_[tensor];
  }
  void AddMisplaced(const WeightIndex::Entry& entry, absl::string_view holders) {
    misplaced_.Add(absl::StrCat(QuotedName(entry.tensor), " is not in ",
                                QuotedName(selection_.index.shards[entry.shard]),
                                holders.empty() ? "" : " but in ", holders));
  }

  // What becomes of each tensor of a repeated name.
  void Decide(OffenderList* undecided, std::vector<uint32_t>* ignored) const {
    for (size_t first = 0; first < catalog_.tensor_count();) {
      size_t last = first + 1;
      while (last < catalog_.tensor_count() && NameAt(last) == NameAt(first)) ++last;
      const auto chosen = chosen_.find(first);
      if (last - first > 1 && chosen == chosen_.end()) {
        undecided->Add(absl::StrCat(QuotedName(NameAt(first)), " in ", HoldersText(first, last)));
      }
      for (size_t position = first; last - first > 1 && position < last; ++position) {
        const size_t index = catalog_.alphabetical(position);
        if (chosen != chosen_.end() && chosen->second == index) continue;
        ignored->push_back(static_cast<uint32_t>(index));
      }
      first = last;
    }
  }

  absl::Status IndexError() {
    const bool all_shards =
        std::all_of(catalog_shards_.begin(), catalog_shards_.end(),
                    [this](size_t shard) { return shard < catalog_.shard_count(); });
    // Only keys of tensors that are there were counted in passing.
    if (!misplaced_.empty() || !all_shards) repeated_keys_ = RepeatedKeys(selection_.index);
    std::vector<std::string> parts;
    if (!misplaced_.empty()) {
      parts.push_back(
          absl::StrCat("names ",
                       Counted(misplaced_.count(), "tensor that its shard does not hold",
                               "tensors that their shards do not hold"),
                       ": ", misplaced_.Text(), "; fetch index and shards again, of one revision"));
    }
    if (!repeated_keys_.empty()) {
      parts.push_back(absl::StrCat("holds ",
                                   Counted(repeated_keys_.count(), "key twice", "keys twice"), ": ",
                                   repeated_keys_.Text(), "; fetch it again"));
    }
    if (parts.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(QuotedPath(absl::StrCat(selection_.directory, "/", selection_.index_name)),
                     " ", absl::StrJoin(parts, "; ")));
  }

  absl::Status UndecidedError(const OffenderList& undecided) const {
    if (undecided.empty()) return absl::OkStatus();
    const bool index = !selection_.index_name.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        QuotedPath(selection_.directory), ": ",
        Counted(undecided.count(), "tensor name occurs in more than one shard",
                "tensor names occur in more than one shard"),
        ": ", undecided.Text(), "; ",
        index ? absl::StrCat(selection_.index_name, " does not say which is meant: ")
              : "without an index nobody can say which is meant: ",
        "remove the shard that is left over, or fetch the checkpoint again with its index"));
  }

  const FileSelection& selection_;
  const CatalogView& catalog_;
  // The catalog's shard of each of the index's; shard_count() where the catalog does not have it.
  std::vector<size_t> catalog_shards_;
  // By tensor (the first of its name): how many keys of the index name it, as far as 2.
  std::vector<uint8_t> keys_;
  // By the first alphabetical position of a repeated name that the index has: the tensor that is
  // meant; tensor_count() where it lies in a shard that is not there, or nowhere.
  absl::flat_hash_map<size_t, size_t> chosen_;
  OffenderList misplaced_;
  OffenderList repeated_keys_;
};

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ResolveNames(const FileSelection& selection,
                                                   const CatalogView& catalog) {
  return NameResolver(selection, catalog).Resolve();
}

}  // namespace forestage
