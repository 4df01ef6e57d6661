#include "client/cli/demo_architecture.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSizes[] = {kMiB, 1'500'000,        10 * kMiB,  64 * kMiB, 1'000'000'000,
                               kGiB, 7 * kGiB + 12345, 140 * kGiB, 700 * kGiB};

std::set<std::string> NamesOf(const DemoModel& model) {
  std::set<std::string> names;
  for (const DemoTensor& tensor : model.tensors) names.insert(tensor.name);
  return names;
}

const DemoTensor& Find(const DemoModel& model, const std::string& name) {
  for (const DemoTensor& tensor : model.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no " << name;
  return model.tensors.front();
}

TEST(DemoArchitectureTest, HitsTheWantedSizeWithinTwoPercent) {
  for (DemoArchitecture architecture : {DemoArchitecture::kLlama, DemoArchitecture::kMixtral}) {
    for (uint64_t wanted : kSizes) {
      ASSERT_OK_AND_ASSIGN(const DemoModel model, MakeDemoModel(architecture, wanted));
      uint64_t bytes = 0;
      for (const DemoTensor& tensor : model.tensors) bytes += DemoTensorBytes(tensor);
      const double error = std::abs(static_cast<double>(bytes) - static_cast<double>(wanted)) /
                           static_cast<double>(wanted);
      EXPECT_LE(error, 0.02) << wanted << " wanted, " << bytes << " made";
      EXPECT_EQ(NamesOf(model).size(), model.tensors.size());
    }
  }
}

TEST(DemoArchitectureTest, LlamaHasTheNamesAndShapesThatItsConfigSays) {
  ASSERT_OK_AND_ASSIGN(const DemoModel model, MakeDemoModel(DemoArchitecture::kLlama, kGiB));
  const uint64_t hidden = model.config["hidden_size"];
  const uint64_t intermediate = model.config["intermediate_size"];
  const uint64_t heads = model.config["num_attention_heads"];
  const uint64_t key_value_heads = model.config["num_key_value_heads"];
  const uint64_t head_dimension = model.config["head_dim"];
  const uint64_t layers = model.config["num_hidden_layers"];
  EXPECT_EQ(heads * head_dimension, hidden);
  EXPECT_EQ(heads % key_value_heads, 0u);
  EXPECT_EQ(model.tensors.size(), 3 + 9 * layers);
  const std::string layer = "model.layers.1.";
  EXPECT_THAT(Find(model, layer + "mlp.down_proj.weight").shape, ElementsAre(hidden, intermediate));
  EXPECT_THAT(Find(model, layer + "self_attn.k_proj.weight").shape,
              ElementsAre(key_value_heads * head_dimension, hidden));
  EXPECT_THAT(Find(model, layer + "input_layernorm.weight").shape, ElementsAre(hidden));
  EXPECT_EQ(Find(model, "lm_head.weight").shape, Find(model, "model.embed_tokens.weight").shape);
}

TEST(DemoArchitectureTest, MixtralHasExpertsAndARouter) {
  ASSERT_OK_AND_ASSIGN(const DemoModel model, MakeDemoModel(DemoArchitecture::kMixtral, kGiB));
  const uint64_t experts = model.config["num_local_experts"];
  const uint64_t layers = model.config["num_hidden_layers"];
  EXPECT_EQ(experts, 8u);
  EXPECT_EQ(model.tensors.size(), 3 + layers * (7 + 3 * experts));
  const std::string moe = "model.layers.0.block_sparse_moe.";
  EXPECT_EQ(Find(model, moe + "gate.weight").shape[0], experts);
  EXPECT_EQ(Find(model, moe + "experts.7.w1.weight").shape[0], model.config["intermediate_size"]);
}

TEST(DemoArchitectureTest, RefusesSizesOutsideItsLimits) {
  for (uint64_t bytes : {uint64_t{0}, kDemoBytesMin - 1, kDemoBytesMax + 1}) {
    EXPECT_THAT(MakeDemoModel(DemoArchitecture::kLlama, bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--size")));
  }
}

TEST(DealToShardsTest, GivesEveryTensorToOneShardInOrder) {
  ASSERT_OK_AND_ASSIGN(const DemoModel model, MakeDemoModel(DemoArchitecture::kLlama, kGiB));
  for (uint64_t count : {1, 2, 4, 7, 50, static_cast<int>(model.tensors.size())}) {
    ASSERT_OK_AND_ASSIGN(const auto shards, DealToShards(model.tensors, count));
    ASSERT_EQ(shards.size(), count);
    size_t next = 0;
    for (const std::vector<size_t>& shard : shards) {
      EXPECT_FALSE(shard.empty());
      for (size_t index : shard) EXPECT_EQ(index, next++);
    }
    EXPECT_EQ(next, model.tensors.size());
  }
}

TEST(DealToShardsTest, MakesShardsOfAboutEqualBytes) {
  ASSERT_OK_AND_ASSIGN(const DemoModel model, MakeDemoModel(DemoArchitecture::kLlama, kGiB));
  ASSERT_OK_AND_ASSIGN(const auto shards, DealToShards(model.tensors, 4));
  for (const std::vector<size_t>& shard : shards) {
    uint64_t bytes = 0;
    for (size_t index : shard) bytes += DemoTensorBytes(model.tensors[index]);
    EXPECT_NEAR(static_cast<double>(bytes), kGiB / 4.0, kGiB / 20.0);
  }
}

TEST(DealToShardsTest, RefusesMoreShardsThanTensors) {
  const std::vector<DemoTensor> tensors = {{"a", {1}}, {"b", {1}}};
  EXPECT_THAT(DealToShards(tensors, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("between 1 and 2")));
  EXPECT_THAT(DealToShards(tensors, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("between 1 and 2")));
}

}  // namespace
}  // namespace forestage
