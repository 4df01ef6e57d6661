#include "forestage/catalog.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "checkpoint/catalog.h"
#include "checkpoint/header_file_for_test.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Of this thread; see operator new below.
thread_local size_t allocations = 0;

std::unique_ptr<const Catalog> CatalogOf(absl::string_view header, uint64_t data_bytes) {
  absl::StatusOr<SafetensorsHeader> parsed =
      ParseHeader(BytesOf(header), 8 + header.size() + data_bytes, "one.safetensors");
  EXPECT_OK(parsed);
  const std::vector<CatalogShard> shards = {{"one.safetensors", 1, *std::move(parsed)}};
  absl::StatusOr<std::vector<std::byte>> bytes = BuildCatalog(shards);
  EXPECT_OK(bytes);
  auto owner = std::make_shared<const std::vector<std::byte>>(*std::move(bytes));
  const absl::StatusOr<CatalogView> view = CatalogView::FromBytes(*owner);
  EXPECT_OK(view);
  return std::make_unique<const Catalog>(owner, *view);
}

std::unique_ptr<const Catalog> SmallCatalog() {
  return CatalogOf(R"({"model.layers.10.w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                       "model.layers.1.w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},
                       "model":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},
                       "lm_head":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                   4);
}

std::vector<std::string> NamesWith(const Catalog& catalog, absl::string_view prefix) {
  std::vector<std::string> names;
  const AlphabeticalRange range = catalog.WithPrefix(prefix);
  for (size_t position = range.first; position < range.last; ++position) {
    names.emplace_back(catalog.tensor(catalog.AlphabeticalIndex(position)).name);
  }
  return names;
}

TEST(CatalogTest, GivesNamesWithAPrefixInAlphabeticalOrder) {
  const std::unique_ptr<const Catalog> catalog = SmallCatalog();
  EXPECT_THAT(NamesWith(*catalog, ""),
              ElementsAre("lm_head", "model", "model.layers.1.w", "model.layers.10.w"));
  EXPECT_THAT(NamesWith(*catalog, "model"),
              ElementsAre("model", "model.layers.1.w", "model.layers.10.w"));
  EXPECT_THAT(NamesWith(*catalog, "model.layers.1."), ElementsAre("model.layers.1.w"));
  EXPECT_THAT(NamesWith(*catalog, "model.layers.10.w"), ElementsAre("model.layers.10.w"));
  EXPECT_THAT(NamesWith(*catalog, "model.layers.10.w."), IsEmpty());
  EXPECT_THAT(NamesWith(*catalog, "zzz"), IsEmpty());
  EXPECT_THAT(NamesWith(*catalog, "a"), IsEmpty());
}

TEST(CatalogTest, AnEmptyPrefixRangeIsEmpty) {
  const AlphabeticalRange range = SmallCatalog()->WithPrefix("zzz");
  EXPECT_TRUE(range.empty());
  EXPECT_EQ(range.size(), 0u);
}

TEST(CatalogTest, AlphabeticalListsTheSameTensors) {
  const std::unique_ptr<const Catalog> catalog = SmallCatalog();
  EXPECT_THAT(catalog->Alphabetical(), ElementsAre(3u, 2u, 1u, 0u));
  EXPECT_THAT(catalog->Alphabetical("model.layers.1"), ElementsAre(1u, 0u));
}

TEST(CatalogTest, QueriesAllocateNothing) {
  const std::unique_ptr<const Catalog> catalog = SmallCatalog();
  const size_t before = allocations;
  size_t bytes = 0;
  const AlphabeticalRange range = catalog->WithPrefix("model.layers.");
  for (size_t position = range.first; position < range.last; ++position) {
    bytes += catalog->tensor(catalog->AlphabeticalIndex(position)).name.size();
  }
  bytes += catalog->Find("model").value_or(0);
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(range.size(), 2u);
  EXPECT_GT(bytes, 0u);
  // The counter counts.
  const auto one = std::make_unique<std::string>(100, 'x');
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace forestage

// Not inlined: the compiler would see malloc where it expects operator new.
[[gnu::noinline]] void* operator new(size_t size) {
  ++forestage::allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
