#include "checkpoint/name_resolution.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/header_file_for_test.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<CatalogShard> TwoShards() {
  return {CatalogShardForTest(
              "one.safetensors",
              R"({"model.layers.10.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
                  "model.layers.1.w":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})",
              26),
          CatalogShardForTest("two.safetensors",
                              R"({"":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},
                  "model":{"dtype":"U8","shape":[0,7],"data_offsets":[2,2]}})",
                              2),
          CatalogShardForTest("three.safetensors", "{}", 0)};
}

// x: a b c, y: b a, z: b a.
std::vector<CatalogShard> ShardsWithCopies() {
  const std::string one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
      "b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},
      "c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  const std::string two = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
      "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  return {CatalogShardForTest("x", one, 3), CatalogShardForTest("y", two, 2),
          CatalogShardForTest("z", two, 2)};
}

FileSelection SelectionOf(std::string index_name, std::vector<std::string> shards) {
  FileSelection selection;
  selection.directory = "dir";
  selection.index_name = std::move(index_name);
  selection.index.shards = std::move(shards);
  return selection;
}

TEST(NameResolutionTest, FindsEntriesInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(TwoShards()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  std::vector<WeightIndex::Entry> order = {
      {"", 0}, {"model", 0}, {"model.layers.1.w", 1}, {"model.layers.10.w", 1}};
  FileSelection selection;
  selection.index.shards = {"two.safetensors", "one.safetensors", "three.safetensors"};
  do {
    selection.index.entries = order;
    EXPECT_OK(ResolveNames(selection, view));
    selection.index.entries[2].shard = 2;
    EXPECT_FALSE(ResolveNames(selection, view).ok());
  } while (std::next_permutation(order.begin(), order.end(),
                                 [](const auto& a, const auto& b) { return a.tensor < b.tensor; }));
}

TEST(NameResolutionTest, ListsEveryEntryThatItsShardDoesNotHold) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(TwoShards()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection =
      SelectionOf("model.safetensors.index.json", {"two.safetensors", "one.safetensors"});
  std::vector<WeightIndex::Entry>& entries = selection.index.entries;
  entries = {{"model", 0}, {"model.layers.1.w", 1}};
  EXPECT_OK(ResolveNames(selection, view));
  EXPECT_OK(ResolveNames(FileSelection(), view));
  entries.push_back({"gone", 1});
  entries.push_back({"model.layers.10.w", 0});
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'dir/model.safetensors.index.json' names 2 tensors that"),
                             HasSubstr("'gone' is not in 'one.safetensors'"),
                             HasSubstr("'model.layers.10.w' is not in 'two.safetensors' but in "
                                       "'one.safetensors'"),
                             Not(HasSubstr("'model' ")))));
}

TEST(NameResolutionTest, FindsNamesHeldTwiceInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(TwoShards()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection =
      SelectionOf("model.safetensors.index.json", {"two.safetensors", "one.safetensors"});
  selection.index.entries = {{"model", 0}, {"model.layers.1.w", 1}, {"model", 0}, {"model", 0}};
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("index.json' holds 1 key twice: 'model'")));
  // In another shard the second time: both are wrong.
  selection.index.entries = {{"model", 0}, {"model.layers.1.w", 1}, {"model", 1}};
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'model' is not in 'one.safetensors'"),
                             HasSubstr("holds 1 key twice: 'model'"))));
}

TEST(NameResolutionTest, WithoutAnIndexEveryNameInSeveralShardsIsAnError) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(ShardsWithCopies()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection;
  selection.directory = "dir";
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'dir': 2 tensor names occur in more than one shard"),
                             HasSubstr("'a' in 'x', 'y', 'z'"), HasSubstr("'b' in 'x', 'y', 'z'"),
                             HasSubstr("without an index"), Not(HasSubstr("'c'")))));
}

TEST(NameResolutionTest, TheIndexDecidesInWhateverOrderItNamesThem) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(ShardsWithCopies()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection = SelectionOf("i", {"x", "y", "z"});
  // File order: x.a 0, x.b 1, x.c 2, y.b 3, y.a 4, z.b 5, z.a 6.
  selection.index.entries = {{"a", 0}, {"b", 2}, {"c", 0}};
  do {
    ASSERT_OK_AND_ASSIGN(const std::vector<uint32_t> ignored, ResolveNames(selection, view));
    EXPECT_THAT(ignored, ElementsAre(1, 3, 4, 6));
  } while (std::next_permutation(selection.index.entries.begin(), selection.index.entries.end(),
                                 [](const auto& a, const auto& b) { return a.tensor < b.tensor; }));
}

TEST(NameResolutionTest, ANameThatTheIndexDoesNotHaveIsAnErrorWithAllItsShards) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(ShardsWithCopies()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection = SelectionOf("i.json", {"x"});
  selection.index.entries = {{"b", 0}};
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("1 tensor name occurs in more than one shard: "
                                       "'a' in 'x', 'y', 'z'"),
                             HasSubstr("i.json does not say which is meant"))));
}

TEST(NameResolutionTest, ACopyIsNoAnswerWhereTheNamedShardLacksTheTensor) {
  std::vector<CatalogShard> shards = ShardsWithCopies();
  shards.push_back(CatalogShardForTest("w", "{}", 0));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(shards));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection = SelectionOf("i.json", {"w", "x"});
  selection.index.entries = {{"a", 0}, {"b", 1}};
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("names 1 tensor that its shard does not hold: "
                                       "'a' is not in 'w' but in 'x', 'y', 'z'"),
                             Not(HasSubstr("more than one shard")))));
}

TEST(NameResolutionTest, OfShardsThatAreNotThereNothingIsSaid) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(ShardsWithCopies()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  FileSelection selection = SelectionOf("i.json", {"damaged", "x"});
  selection.index.entries = {{"a", 0}, {"b", 1}, {"d", 0}};
  ASSERT_OK_AND_ASSIGN(const std::vector<uint32_t> ignored, ResolveNames(selection, view));
  EXPECT_THAT(ignored, ElementsAre(0, 3, 4, 5, 6));
  // But of those that are there, and of the index, everything.
  selection.index.entries = {{"a", 0}, {"b", 1}, {"d", 0}, {"d", 0}, {"e", 1}};
  EXPECT_THAT(ResolveNames(selection, view),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'e' is not in 'x'"), HasSubstr("1 key twice: 'd'"))));
}

}  // namespace
}  // namespace forestage
