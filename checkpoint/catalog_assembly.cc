#include "checkpoint/catalog_assembly.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "checkpoint/name_resolution.h"
#include "common/check.h"
#include "common/error_list.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

absl::StatusOr<AssembledCatalog> CatalogOf(absl::Span<const CatalogShard> shards) {
  ASSIGN_OR_RETURN(std::vector<std::byte> bytes, BuildCatalog(shards));
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  ASSIGN_OR_RETURN(const CatalogView view, CatalogView::FromBytes(*owner));
  return AssembledCatalog{.bytes = std::move(owner), .view = view, .ignored_copies = {}};
}

// `served` is `all` without these.
std::vector<IgnoredCopy> CopiesOf(const CatalogView& all, absl::Span<const uint32_t> ignored,
                                  const CatalogView& served) {
  std::vector<IgnoredCopy> copies;
  for (const uint32_t index : ignored) {
    const TensorEntryView copy = all.tensor(index);
    const std::optional<size_t> found = served.Find(copy.name);
    CHECK(found.has_value());
    const TensorEntryView meant = served.tensor(*found);
    copies.push_back({.tensor = std::string(copy.name),
                      .shard = std::string(all.shard(copy.shard_index).name),
                      .served_from = std::string(served.shard(meant.shard_index).name),
                      .differs = copy.dtype != meant.dtype || copy.shape != meant.shape});
  }
  return copies;
}

absl::StatusOr<AssembledCatalog> AssembleSound(const FileSelection& selection,
                                               absl::Span<const CatalogShard> shards) {
  ASSIGN_OR_RETURN(AssembledCatalog all, CatalogOf(shards));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ignored, ResolveNames(selection, all.view));
  if (ignored.empty()) return all;
  auto owner =
      std::make_shared<const std::vector<std::byte>>(BuildCatalogWithout(all.view, ignored));
  ASSIGN_OR_RETURN(const CatalogView view, CatalogView::FromBytes(*owner));
  return AssembledCatalog{
      .bytes = std::move(owner), .view = view, .ignored_copies = CopiesOf(all.view, ignored, view)};
}

// Takes the sound ones out; what is wrong with the others.
std::vector<absl::Status> TakeSound(std::vector<ShardReading> readings,
                                    std::vector<CatalogShard>* sound) {
  std::vector<absl::Status> faults;
  sound->reserve(readings.size());
  for (ShardReading& reading : readings) {
    if (reading.ok()) {
      sound->push_back(*std::move(reading));
    } else {
      faults.push_back(reading.status());
    }
  }
  return faults;
}

void AddFaultsOfNames(const FileSelection& selection, absl::Span<const CatalogShard> sound,
                      std::vector<absl::Status>* faults) {
  const absl::StatusOr<AssembledCatalog> all = CatalogOf(sound);
  absl::Status status = all.ok() ? ResolveNames(selection, all->view).status() : all.status();
  if (!status.ok()) faults->push_back(std::move(status));
}

}  // namespace

absl::StatusOr<AssembledCatalog> AssembleCatalog(const FileSelection& selection,
                                                 std::vector<ShardReading> shards) {
  std::vector<CatalogShard> sound;
  std::vector<absl::Status> faults = TakeSound(std::move(shards), &sound);
  if (faults.empty()) return AssembleSound(selection, sound);
  AddFaultsOfNames(selection, sound, &faults);
  return JoinErrors(faults);
}

std::vector<absl::Status> FaultsOf(const FileSelection& selection,
                                   std::vector<ShardReading> shards) {
  std::vector<CatalogShard> sound;
  std::vector<absl::Status> faults = TakeSound(std::move(shards), &sound);
  AddFaultsOfNames(selection, sound, &faults);
  return faults;
}

}  // namespace forestage
