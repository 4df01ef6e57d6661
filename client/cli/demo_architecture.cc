#include "client/cli/demo_architecture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/cli/byte_format.h"

namespace forestage {
namespace {

constexpr uint64_t kBytesPerElement = 2;  // BF16
constexpr uint64_t kHeadDimension = 64;
// Query heads that share one key-value head, in both architectures.
constexpr uint64_t kHeadsPerKeyValueHead = 4;
constexpr uint64_t kHiddenStep = kHeadDimension * kHeadsPerKeyValueHead;
constexpr uint64_t kVocabularyStep = 64;
constexpr uint64_t kVocabularyMin = 256;
// So far may the step of the one free dimension move the total.
constexpr double kStepShareMax = 0.005;

// What an architecture is scaled from.
struct Original {
  double parameters;
  double hidden;
  double layers;
  double vocabulary;
  uint64_t experts;  // 0: dense
};
constexpr Original kLlama = {8.03e9, 4096, 32, 128256, 0};
constexpr Original kMixtral = {46.7e9, 4096, 32, 32000, 8};

struct Dimensions {
  uint64_t hidden = 0;
  uint64_t layers = 0;
  uint64_t vocabulary = 0;
  uint64_t intermediate = 0;
  uint64_t experts = 0;

  uint64_t heads() const { return hidden / kHeadDimension; }
  uint64_t key_value_heads() const { return heads() / kHeadsPerKeyValueHead; }
  uint64_t key_value_width() const { return key_value_heads() * kHeadDimension; }
};

uint64_t RoundToStep(double value, uint64_t step, uint64_t least) {
  const auto steps = static_cast<uint64_t>(std::llround(value / static_cast<double>(step)));
  return std::max(least, steps * step);
}

// Parameters of everything but the feed-forward matrices.
uint64_t OtherParameters(const Dimensions& d) {
  const uint64_t attention = 2 * d.hidden * d.hidden + 2 * d.hidden * d.key_value_width();
  const uint64_t layer = attention + 2 * d.hidden + d.experts * d.hidden;
  return 2 * d.vocabulary * d.hidden + d.hidden + d.layers * layer;
}

// Width and depth shrink alike; the width of the feed-forward part then meets the wanted size.
Dimensions ScaleDimensions(const Original& original, uint64_t bytes) {
  const uint64_t parameters = bytes / kBytesPerElement;
  const double scale = static_cast<double>(parameters) / original.parameters;
  const double edge = std::cbrt(scale);
  Dimensions d;
  d.experts = original.experts;
  d.hidden = RoundToStep(original.hidden * edge, kHiddenStep, kHiddenStep);
  d.layers = RoundToStep(original.layers * edge, 1, 1);
  d.vocabulary = RoundToStep(original.vocabulary * edge * edge, kVocabularyStep, kVocabularyMin);
  while (d.hidden > kHiddenStep && OtherParameters(d) > parameters / 2) d.hidden -= kHiddenStep;
  const uint64_t per_unit = 3 * d.hidden * d.layers * std::max<uint64_t>(1, d.experts);
  const uint64_t other = OtherParameters(d);
  const uint64_t rest = parameters > other ? parameters - other : 0;
  uint64_t step = 64;
  while (step > 1 &&
         static_cast<double>(step * per_unit) > kStepShareMax * static_cast<double>(parameters))
    step /= 2;
  d.intermediate =
      RoundToStep(static_cast<double>(rest) / static_cast<double>(per_unit), step, step);
  return d;
}

void AddAttention(const std::string& layer, const Dimensions& d, std::vector<DemoTensor>& to) {
  to.push_back({layer + "input_layernorm.weight", {d.hidden}});
  to.push_back({layer + "self_attn.q_proj.weight", {d.hidden, d.hidden}});
  to.push_back({layer + "self_attn.k_proj.weight", {d.key_value_width(), d.hidden}});
  to.push_back({layer + "self_attn.v_proj.weight", {d.key_value_width(), d.hidden}});
  to.push_back({layer + "self_attn.o_proj.weight", {d.hidden, d.hidden}});
  to.push_back({layer + "post_attention_layernorm.weight", {d.hidden}});
}

void AddFeedForward(const std::string& layer, const Dimensions& d, std::vector<DemoTensor>& to) {
  if (d.experts == 0) {
    to.push_back({layer + "mlp.gate_proj.weight", {d.intermediate, d.hidden}});
    to.push_back({layer + "mlp.up_proj.weight", {d.intermediate, d.hidden}});
    to.push_back({layer + "mlp.down_proj.weight", {d.hidden, d.intermediate}});
    return;
  }
  to.push_back({layer + "block_sparse_moe.gate.weight", {d.experts, d.hidden}});
  for (uint64_t i = 0; i < d.experts; ++i) {
    const std::string expert = absl::StrCat(layer, "block_sparse_moe.experts.", i, ".");
    to.push_back({expert + "w1.weight", {d.intermediate, d.hidden}});
    to.push_back({expert + "w2.weight", {d.hidden, d.intermediate}});
    to.push_back({expert + "w3.weight", {d.intermediate, d.hidden}});
  }
}

Json MakeConfig(DemoArchitecture architecture, const Dimensions& d) {
  const bool llama = architecture == DemoArchitecture::kLlama;
  Json config;
  config["architectures"] = Json::array({llama ? "LlamaForCausalLM" : "MixtralForCausalLM"});
  config["attention_bias"] = false;
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  config["head_dim"] = kHeadDimension;
  config["hidden_act"] = "silu";
  config["hidden_size"] = d.hidden;
  config["initializer_range"] = 0.02;
  config["intermediate_size"] = d.intermediate;
  config["max_position_embeddings"] = 8192;
  config["model_type"] = llama ? "llama" : "mixtral";
  config["num_attention_heads"] = d.heads();
  config["num_hidden_layers"] = d.layers;
  config["num_key_value_heads"] = d.key_value_heads();
  if (!llama) {
    config["num_experts_per_tok"] = 2;
    config["num_local_experts"] = d.experts;
  }
  config["rms_norm_eps"] = 1e-05;
  config["rope_theta"] = llama ? 500000.0 : 1000000.0;
  config["tie_word_embeddings"] = false;
  config["torch_dtype"] = "bfloat16";
  config["vocab_size"] = d.vocabulary;
  return config;
}

}  // namespace

uint64_t DemoTensorBytes(const DemoTensor& tensor) {
  uint64_t bytes = kBytesPerElement;
  for (uint64_t dimension : tensor.shape) bytes *= dimension;
  return bytes;
}

absl::StatusOr<DemoModel> MakeDemoModel(DemoArchitecture architecture, uint64_t bytes) {
  if (bytes < kDemoBytesMin || bytes > kDemoBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size is ", FormatBytes(bytes), "; it must be between ",
                     FormatBytes(kDemoBytesMin), " and ", FormatBytes(kDemoBytesMax)));
  }
  const Dimensions d =
      ScaleDimensions(architecture == DemoArchitecture::kLlama ? kLlama : kMixtral, bytes);
  DemoModel model;
  model.tensors.push_back({"model.embed_tokens.weight", {d.vocabulary, d.hidden}});
  for (uint64_t i = 0; i < d.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    AddAttention(layer, d, model.tensors);
    AddFeedForward(layer, d, model.tensors);
  }
  model.tensors.push_back({"model.norm.weight", {d.hidden}});
  model.tensors.push_back({"lm_head.weight", {d.vocabulary, d.hidden}});
  model.config = MakeConfig(architecture, d);
  return model;
}

absl::StatusOr<std::vector<std::vector<size_t>>> DealToShards(
    const std::vector<DemoTensor>& tensors, uint64_t shard_count) {
  if (shard_count == 0 || shard_count > tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shards is ", shard_count, "; this checkpoint has ", tensors.size(),
                     " tensors, so it must be between 1 and ", tensors.size()));
  }
  uint64_t total = 0;
  for (const DemoTensor& tensor : tensors) total += DemoTensorBytes(tensor);
  std::vector<std::vector<size_t>> shards(1);
  uint64_t before = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t missing = shard_count - shards.size();
    const double share_end = static_cast<double>(total) / static_cast<double>(shard_count) *
                             static_cast<double>(shards.size());
    const double middle =
        static_cast<double>(before) + static_cast<double>(DemoTensorBytes(tensors[i])) / 2;
    const bool full = middle > share_end;
    const bool one_each = tensors.size() - i == missing;
    if (missing > 0 && !shards.back().empty() && (full || one_each)) shards.emplace_back();
    shards.back().push_back(i);
    before += DemoTensorBytes(tensors[i]);
  }
  return shards;
}

}  // namespace forestage
