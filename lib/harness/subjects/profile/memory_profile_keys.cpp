#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/subjects/modelled_keys.h"
#include "harness/subjects/profile/memory_profile.h"

// Which cells a profile covers, by their keys.
namespace fp8lab {
namespace {

constexpr std::array kReasons{
    KeyReason{"ranks", "profiles say nothing of several ranks that neither shard nor average gradients"},
    KeyReason{"fix", "it is a switch of this program's own runtime"},
    KeyReason{"control", "it is a test of this program's own measurement"},
    KeyReason{"training.param_dtype", "profiles cover only `param_dtype: bf16`"},
    KeyReason{"training.optimizer", "profiles cover only `optimizer: adam` and `none`"},
    KeyReason{"training.moments", "profiles cover only moments in f32 and bf16"},
    KeyReason{"training.fp8_attention", "profiles cover only `fp8_attention: false`"},
    KeyReason{"training.cache_weights",
              "profiles cover only `cache_weights: false`, weights that are cast in every forward"},
    KeyReason{"training.deferred_init", "profiles cover weights that each rank makes in full before it shards them"},
    KeyReason{"model.top_k", "profiles cover only one MLP for all tokens; leave `top_k` out"},
    KeyReason{"model.kv_rank", "profiles cover only one product for Q, K and V; leave `kv_rank` out"},
    KeyReason{"model.attention_sinks", "profiles cover only `attention_sinks: false`"},
    KeyReason{"model.swiglu_limit", "profiles cover only SwiGLU without limits; leave `swiglu_limit` out"},
    KeyReason{"model.head_dim", "profiles cover only heads of hidden / heads columns; leave `head_dim` out"},
    KeyReason{"model.qk_norm", "profiles cover only `qk_norm: false`"},
    KeyReason{"model.bias", "profiles cover only the biases of a form; leave `bias` out"},
};

/// True for other values than the default that are modelled all the same.
bool is_modelled(const Key& key, const CellConfig& cell) {
  const TrainingConfig& training = cell.training;
  if (key.path == "ranks") return has_ranks(cell);
  if (key.path == "mesh" || key.path == "sharding") return true;
  // What only language models have, and the type in which lib/harness/eager reduces their gradients.
  static constexpr std::array<std::string_view, 7> kOfModels{
      "model.vocabulary", "model.head",      "model.positions", "training.loss_chunks",
      "training.tokens",  "training.corpus", "reduce_dtype"};
  if (cell.model.vocabulary > 0 && std::ranges::find(kOfModels, key.path) != kOfModels.end()) return true;
  if (key.path == "training.deferred_init") return !cell.training.deferred_init.value_or(false);
  if (key.path == "training.optimizer") return training.optimizer == Optimizer::kAdam;
  return key.path == "training.moments" && training.moments == Moments::kBF16;
}

/// BF16 ignores the key.
bool has_quantized_weights(const CellConfig& cell, Arm arm) {
  return arm != Arm::kBf16 && cell.training.recipe != "bf16" && cell.training.quantized_weights;
}

/// True if layers compute with weights that stay in eight bits. Under FSDP2 weights in blocks do not: the shards of a
/// Float8BlockwiseQTensor are tensors in 16 bits (its __torch_dispatch__ has no new_zeros), which are gathered and cast
/// as other weights in 16 bits are.
bool computes_with_quantized_weights(const CellConfig& cell, Arm arm) {
  return has_quantized_weights(cell, arm) && !(is_sharded(cell) && cell.training.recipe == "block");
}

/// The keys of a sharded cell of which profiles say nothing, and why.
void add_uncovered_when_sharded(const CellConfig& cell, Arm arm, bool gathers_fp8, std::vector<std::string>& out) {
  if (cell.training.clip_norm > 0)
    out.emplace_back("training.clip_norm: profiles say nothing of the norm of sharded gradients");
  if (!has_quantized_weights(cell, arm)) return;
  if (!gathers_fp8)
    out.emplace_back("training.quantized_weights: the profile covers no sharded FP8 weights of this release");
  if (!computes_with_quantized_weights(cell, arm)) return;
  if (cell.training.checkpoint != Recompute::kNone)
    out.emplace_back(
        "training.checkpoint: recomputed layers with sharded FP8 weights end with an error in backward, or, if they "
        "stay gathered, multiply by old transposes");
  const Sizes sizes(cell.model);
  const int shards = mesh_of(cell).shards;
  // The second gather leaves padded rows in the weight (Float8Tensor.fsdp_post_all_gather).
  for (const char* rows : {"hidden", "qkv", "ffn"})
    if (static_cast<std::int64_t>(sizes.of(rows).value()) % shards != 0) {
      out.push_back(fmt::format(
          "{}: {} shards do not divide {}, and with padded FP8 weights the second forward ends with an error",
          cell.mesh.empty() ? "ranks" : "mesh", shards, rows));
      break;
    }
}

/// The same of a language model.
void add_uncovered_of_models(const CellConfig& cell, Arm arm, std::vector<std::string>& out) {
  if (cell.model.layer != "transformer_layer")
    out.emplace_back("model.vocabulary: profiles cover language models of transformer_layer");
  if (is_sharded(cell) && computes_with_quantized_weights(cell, arm))
    out.emplace_back(
        "training.quantized_weights: with embedding and head profiles cover sharded weights in 16 bits, and blocks");
}

}  // namespace

const ProfileRow* MemoryProfile::row_of(const CellConfig& cell, Arm arm) const {
  const std::string recipe = arm == Arm::kBf16 ? "bf16" : cell.training.recipe;
  const bool quantized = computes_with_quantized_weights(cell, arm);
  const auto found = std::ranges::find_if(rows_, [&](const ProfileRow& row) {
    return row.layer == cell.model.layer && row.form == cell.model.form && row.recipe == recipe &&
           row.quantized_weights == quantized && is_within(release_, row.first, row.last);
  });
  return found == rows_.end() ? nullptr : &*found;
}

std::vector<std::string> MemoryProfile::uncovered(const CellConfig& cell, Arm arm) const {
  std::vector<std::string> out;
  if (cell.arch != arch_) out.push_back(fmt::format("arch: {}; the profile covers {}", cell.arch, arch_));
  std::ranges::move(unmodelled_keys(
                        cell, arm, [&](const Key& key) { return is_modelled(key, cell); }, kReasons, "profiles"),
                    std::back_inserter(out));
  if (is_sharded(cell)) add_uncovered_when_sharded(cell, arm, gathers_fp8_weights(), out);
  if (is_replicated(cell) && has_quantized_weights(cell, arm))
    out.emplace_back("training.quantized_weights: profiles cover DistributedDataParallel with weights in 16 bits");
  if (is_selective(cell.training.checkpoint))
    out.push_back(fmt::format("training.checkpoint: {}; Transformer Engine's checkpoint() recomputes all of a layer",
                              cell.training.checkpoint.text()));
  if (cell.model.vocabulary > 0) add_uncovered_of_models(cell, arm, out);
  if (const std::string loss(to_text(find_key("training.loss")->get(cell)));
      cell.model.vocabulary == 0 && !losses_.contains(loss))
    out.push_back(fmt::format("training.loss: the profile has no {}", loss));
  CellConfig as_run = cell;  // in its arm
  as_run.training.quantized_weights = has_quantized_weights(cell, arm);
  if (arm == Arm::kBf16) as_run.training.recipe = "bf16";
  for (const ProfileGap& gap : gaps_) {
    if (!is_within(release_, gap.first, gap.last)) continue;
    if (std::ranges::all_of(
            gap.cells, [&](const auto& entry) { return to_text(find_key(entry.first)->get(as_run)) == entry.second; }))
      out.push_back(fmt::format("{}: {} {}: {}", gap.cells.empty() ? "versions.after" : gap.cells.begin()->first,
                                subject_, release_, gap.reason));
  }
  if (row_of(cell, arm) == nullptr) {
    const std::string recipe = arm == Arm::kBf16 ? "bf16" : cell.training.recipe;
    out.push_back(fmt::format("model.layer: the profile has no {} in form {} under {}{}", cell.model.layer,
                              cell.model.form, recipe, as_run.training.quantized_weights ? " with FP8 weights" : ""));
  }
  return out;
}

}  // namespace fp8lab
