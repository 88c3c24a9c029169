#include "harness/reference/support.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "harness/cell/sharding_keys.h"

namespace fp8lab::reference_step {

double multiplications(const ModelConfig& model) {
  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  const double tokens = count(model.seq) * count(model.batch), hidden = count(model.hidden);
  const double experts = routes_tokens(model) ? count(model.top_k + model.shared_experts) : 1.0;
  // As if all layers had the wider MLP.
  const double ffn =
      std::max(count(mlp_width(model)) * experts, model.dense_layers > 0 ? count(dense_width(model)) : 0.0);
  // As if values were as wide as keys, or keys as wide as values.
  const double attended = count(model.heads) * count(std::max(key_dim_of(model), value_dim_of(model)));
  const double keys = count(model.kv_heads == 0 ? model.heads : model.kv_heads) * count(key_dim_of(model));
  double weights = hidden * hidden;
  if (model.layer == "layernorm_mlp" || model.layer == "transformer_layer")
    weights = ffn * hidden * (model.form == "gpt" ? 2.0 : 3.0);
  double scores = 0.0;
  if (model.layer == "multihead_attention" || model.layer == "transformer_layer") {
    if (model.layer == "multihead_attention") weights = 0.0;
    weights += hidden * (2.0 * attended + 2.0 * keys);
    if (has_latents(model)) weights += count(model.q_rank + model.kv_rank) * (hidden + 2.0 * attended);
    scores = 2.0 * tokens * count(model.seq) * attended;
  }
  const double head = tokens * hidden * count(model.vocabulary);
  return 3.0 * (count(model.layers) * (tokens * weights + scores) + head);
}

std::string why_unsupported(const CellConfig& cell, std::string_view recipe) {
  constexpr std::array<std::string_view, 5> kRecipes{"bf16", "delayed", "current", "block", "mxfp8"};
  const TrainingConfig& training = cell.training;
  const bool quantized = recipe != "bf16", has_history = recipe == "delayed" || training.fp8_attention;
  const struct {
    bool applies;
    std::string_view reason;
  } rules[]{
      {std::find(kRecipes.begin(), kRecipes.end(), recipe) == kRecipes.end(), "this recipe"},
      {cell.context_parallel > 1 && quantized && training.fp8_attention,
       "FP8 attention over ranks that split sequences, whose casts follow from parts of the sums"},
      {training.validation_batches > 0 && quantized && has_history, "validation batches before a scale from a history"},
      {mesh_of(cell).shards > 1 && (training.moments == Moments::kF16 || training.moments == Moments::kE4M3),
       "moments with a scale per shard"},
      {cell.model.dropout > 0.0 && quantized && training.fp8_attention, "dropout in FP8 attention"},
      {quantized && training.fp8_sums == Fp8Sums::kTensorCore && training.fp8_mha,
       "sums of a tensor core over eight bits that attention exchanges"},
      {quantized && training.quantized_weights, "weights that live in eight bits"},
  };
  for (const auto& rule : rules)
    if (rule.applies) return fmt::format("the reference step does not cover {}", rule.reason);
  const auto passes =
      static_cast<double>(training.steps * training.micro_batches * data_parallel_ranks(cell) * cell.context_parallel);
  const double count = 2.0 * multiplications(cell.model) * passes;
  if (count > kMostMultiplications)
    return fmt::format("the reference step would take {:.2g} multiplications, more than {:.2g}", count,
                       kMostMultiplications);
  return {};
}

}  // namespace fp8lab::reference_step
