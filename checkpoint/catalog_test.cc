#include "checkpoint/catalog.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "checkpoint/catalog_layout.h"
#include "checkpoint/header_file_for_test.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Two shards, with metadata, a scalar, an empty tensor and a sub-byte one.
std::vector<CatalogShard> TwoShards() {
  return {CatalogShardForTest("one.safetensors",
                              R"({"__metadata__":{"format":"pt","a":""},
                  "model.layers.10.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
                  "model.layers.1.w":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})",
                              26),
          CatalogShardForTest("two.safetensors",
                              R"({"__metadata__":{},
                  "":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},
                  "model":{"dtype":"U8","shape":[0,7],"data_offsets":[2,2]}})",
                              2),
          CatalogShardForTest("three.safetensors", "{}", 0)};
}

TEST(CatalogTest, GivesBackWhatItWasBuiltFrom) {
  const std::vector<CatalogShard> shards = TwoShards();
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(shards));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  ASSERT_EQ(view.shard_count(), 3u);
  ASSERT_EQ(view.tensor_count(), 4u);
  uint64_t total_bytes = 0;
  size_t next_tensor = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardEntryView shard = view.shard(i);
    const SafetensorsHeader& header = shards[i].header;
    EXPECT_EQ(shard.name, shards[i].name);
    EXPECT_EQ(shard.bytes, header.file_bytes);
    EXPECT_EQ(shard.mtime_ns, 1234);
    EXPECT_EQ(shard.data_begin, header.data_begin);
    EXPECT_EQ(shard.digest, header.digest);
    EXPECT_EQ(shard.first_tensor, next_tensor);
    ASSERT_EQ(shard.tensor_count, header.tensors.size());
    total_bytes += shard.bytes;
    for (const HeaderTensor& expected : header.tensors) {
      const TensorEntryView tensor = view.tensor(next_tensor++);
      EXPECT_EQ(tensor.name, expected.name);
      EXPECT_EQ(tensor.dtype, expected.dtype);
      EXPECT_EQ(std::vector<uint64_t>(tensor.shape.begin(), tensor.shape.end()), expected.shape);
      EXPECT_EQ(tensor.shard_index, i);
      EXPECT_EQ(tensor.begin, expected.begin);
      EXPECT_EQ(tensor.end, expected.end);
    }
  }
  EXPECT_EQ(view.total_bytes(), total_bytes);
  EXPECT_THAT(view.metadata(0),
              ::testing::Optional(ElementsAre(Pair("a", ""), Pair("format", "pt"))));
  EXPECT_THAT(view.metadata(1), ::testing::Optional(IsEmpty()));
  EXPECT_EQ(view.metadata(2), std::nullopt);
}

TEST(CatalogTest, FindsByNameAndPrefix) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog(TwoShards()));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  EXPECT_EQ(view.Find("model.layers.10.w"), 0u);
  EXPECT_EQ(view.Find("model.layers.1.w"), 1u);
  EXPECT_EQ(view.Find(""), 2u);
  EXPECT_EQ(view.Find("model"), 3u);
  EXPECT_EQ(view.Find("model."), std::nullopt);
  EXPECT_EQ(view.Find("zzz"), std::nullopt);
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < view.tensor_count(); ++i)
    names.push_back(view.tensor(view.alphabetical(i)).name);
  EXPECT_THAT(names, ElementsAre("", "model", "model.layers.1.w", "model.layers.10.w"));
  EXPECT_THAT(view.PrefixRange(""), Pair(0u, 4u));
  EXPECT_THAT(view.PrefixRange("model"), Pair(1u, 4u));
  EXPECT_THAT(view.PrefixRange("model.layers.1"), Pair(2u, 4u));
  EXPECT_THAT(view.PrefixRange("model.layers.1."), Pair(2u, 3u));
  EXPECT_THAT(view.PrefixRange("model.layers.2"), Pair(4u, 4u));
  EXPECT_THAT(view.PrefixRange("a"), Pair(1u, 1u));
}

TEST(CatalogTest, HoldsNothing) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog({}));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  EXPECT_EQ(view.shard_count(), 0u);
  EXPECT_EQ(view.tensor_count(), 0u);
  EXPECT_EQ(view.Find("a"), std::nullopt);
  EXPECT_THAT(view.PrefixRange(""), Pair(0u, 0u));
}

TEST(CatalogTest, HoldsNamesThatSeveralShardsHoldOnceForEach) {
  const std::string one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
      "b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  const std::string two = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> once,
                       BuildCatalog({CatalogShardForTest("x", one, 2)}));
  ASSERT_OK_AND_ASSIGN(const CatalogView once_view, CatalogView::FromBytes(once));
  EXPECT_FALSE(once_view.has_repeated_names());
  ASSERT_OK_AND_ASSIGN(
      const std::vector<std::byte> bytes,
      BuildCatalog({CatalogShardForTest("x", one, 2), CatalogShardForTest("y", two, 1),
                    CatalogShardForTest("z", two, 1)}));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  EXPECT_TRUE(view.has_repeated_names());
  EXPECT_THAT(view.PrefixRange("b"), Pair(1u, 4u));
  for (size_t position = 1; position < 4; ++position) {
    EXPECT_EQ(view.alphabetical(position), position);
    EXPECT_EQ(view.shard_of(position), position - 1);
  }
  EXPECT_EQ(view.tensor_name(view.Find("b").value_or(0)), "b");
}

TEST(CatalogTest, IsTheSameButForTensorsThatAreLeftOut) {
  const std::vector<CatalogShard> shards = TwoShards();
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> all_bytes, BuildCatalog(shards));
  ASSERT_OK_AND_ASSIGN(const CatalogView all, CatalogView::FromBytes(all_bytes));
  EXPECT_EQ(BuildCatalogWithout(all, {}), all_bytes);
  const std::vector<std::byte> bytes = BuildCatalogWithout(all, {0, 2});
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  ASSERT_EQ(view.tensor_count(), 2u);
  EXPECT_EQ(view.tensor(0).name, "model.layers.1.w");
  EXPECT_EQ(view.tensor(0).begin, all.tensor(1).begin);
  EXPECT_EQ(view.tensor(1).name, "model");
  EXPECT_EQ(view.tensor(1).shard_index, 1u);
  EXPECT_EQ(view.signature(), all.signature());
  EXPECT_EQ(view.total_bytes(), all.total_bytes());
}

CheckpointSignature SignatureOfShards(const std::vector<CatalogShard>& shards) {
  const absl::StatusOr<std::vector<std::byte>> bytes = BuildCatalog(shards);
  EXPECT_OK(bytes);
  const absl::StatusOr<CatalogView> view = CatalogView::FromBytes(*bytes);
  EXPECT_OK(view);
  return view->signature();
}

TEST(CatalogTest, SignatureChangesWithWhatItNames) {
  const std::vector<CatalogShard> shards = TwoShards();
  const CheckpointSignature signature = SignatureOfShards(shards);
  EXPECT_EQ(SignatureOfShards(TwoShards()), signature);
  std::vector<CatalogShard> changed = shards;
  changed[0].mtime_ns += 1;
  EXPECT_NE(SignatureOfShards(changed), signature);
  changed = shards;
  changed[2].name += "x";
  EXPECT_NE(SignatureOfShards(changed), signature);
  changed = shards;
  changed[1].header.digest[31] ^= 1;
  EXPECT_NE(SignatureOfShards(changed), signature);
  changed = shards;
  std::swap(changed[0], changed[1]);
  EXPECT_NE(SignatureOfShards(changed), signature);
  changed = shards;
  changed.pop_back();
  EXPECT_NE(SignatureOfShards(changed), signature);
}

TEST(CatalogTest, RefusesBytesThatAreNoCatalog) {
  ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, BuildCatalog(TwoShards()));
  const auto refuses = [](absl::Span<const std::byte> given, absl::string_view what) {
    EXPECT_THAT(CatalogView::FromBytes(given),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(what))));
  };
  refuses({}, "0 bytes");
  refuses(absl::MakeConstSpan(bytes).subspan(0, bytes.size() - 8), "counts");
  refuses(absl::MakeConstSpan(bytes).subspan(1), "aligned");
  std::vector<std::byte> longer = bytes;
  longer.resize(bytes.size() + 8);
  refuses(longer, "counts");
  bytes[0] = std::byte{'x'};
  refuses(bytes, "begin");
}

// Reads all that the accessors can give, so that a sanitizer sees what they touch.
uint64_t TouchEverything(const CatalogView& view) {
  uint64_t sum = view.total_bytes() + view.signature()[0];
  const auto add = [&sum](absl::string_view text) {
    for (const char c : text) sum += static_cast<unsigned char>(c);
  };
  for (size_t i = 0; i < view.shard_count(); ++i) {
    add(view.shard(i).name);
    const auto metadata = view.metadata(i);
    if (!metadata.has_value()) continue;
    for (const auto& [key, value] : *metadata) {
      add(key);
      add(value);
    }
  }
  for (size_t i = 0; i < view.tensor_count(); ++i) {
    const TensorEntryView tensor = view.tensor(i);
    add(tensor.name);
    for (const uint64_t dimension : tensor.shape) sum += dimension;
    EXPECT_LT(tensor.shard_index, view.shard_count());
    EXPECT_LE(tensor.begin, tensor.end);
    EXPECT_LE(tensor.end, view.shard(tensor.shard_index).bytes);
    const std::optional<size_t> found = view.Find(tensor.name);
    EXPECT_TRUE(found.has_value() && view.tensor_name(*found) == tensor.name);
    sum += view.PrefixRange(tensor.name).first;
  }
  return sum;
}

TEST(CatalogTest, SurvivesAnyChangeOfItsBytes) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> sound, BuildCatalog(TwoShards()));
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = sound;
    const size_t changes = 1 + random() % 2;
    for (size_t i = 0; i < changes; ++i) {
      const size_t place = random() % bytes.size();
      bytes[place] = random() % 2 == 0 ? static_cast<std::byte>(random() & 0xFF)
                                       : bytes[place] ^ static_cast<std::byte>(1 << random() % 8);
    }
    const absl::StatusOr<CatalogView> view = CatalogView::FromBytes(bytes);
    if (view.ok()) {
      TouchEverything(*view);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000u);
}

TEST(CatalogTest, HoldsAsManyTensorsAsTheLargestModels) {
  std::string text = "{";
  constexpr uint64_t kCount = 150'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", "\"model.layers.", i / 1000, ".mlp.experts.",
                    i % 1000, ".weight\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[",
                    4 * i, ",", 4 * i + 4, "]}");
  }
  text += "}";
  const CatalogShard shard = CatalogShardForTest("big.safetensors", text, 4 * kCount);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, BuildCatalog({shard}));
  ASSERT_OK_AND_ASSIGN(const CatalogView view, CatalogView::FromBytes(bytes));
  ASSERT_EQ(view.tensor_count(), kCount);
  EXPECT_EQ(view.Find("model.layers.149.mlp.experts.999.weight"), kCount - 1);
  const auto [first, last] = view.PrefixRange("model.layers.7.");
  EXPECT_EQ(last - first, 1000u);
}

}  // namespace
}  // namespace forestage
