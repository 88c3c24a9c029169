#include "harness/subjects/torch_coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/eager/numbers.h"
#include "harness/subjects/modelled_keys.h"

namespace fp8lab {
namespace {

using eager::Operators;
using eager::Program;

constexpr std::array kLibraries{
    TorchLibrary{"torch", "2.", 9, 15, "before 2.9 PyTorch has no fused RMSNorm", ""},
    TorchLibrary{"torchao", "0.", 13, 18, "how Float8Linear computes was read from 0.13 on", "current"},
};

constexpr std::array kTorchReasons{
    KeyReason{"ranks", "figures cover one rank, or ranks under `sharding: fsdp` or `ddp`"},
    KeyReason{"fix", "it is a switch of this program's own runtime"},
    KeyReason{"control", "it is a test of this program's own measurement"},
    KeyReason{"model.router_aux_loss", "figures cover routers without an auxiliary loss"},
    KeyReason{"model.window", "figures cover windows with `attention_sinks`; leave `window` out"},
    KeyReason{"model.window_every", "figures cover windows with `attention_sinks`; leave `window_every` out"},
    KeyReason{"model.dropout", "figures cover training without dropout"},
    KeyReason{"model.bias", "figures cover the biases that a form has, `qkv`, and true; leave `bias` out"},
    KeyReason{"training.moments", "PyTorch's Adam keeps moments in the type that it updates"},
};

/// PyTorch's Adam keeps moments in the type of what it updates.
bool has_moments_of_torch(const CellConfig& cell) {
  const TrainingConfig& training = cell.training;
  if (training.optimizer == Optimizer::kNone || training.optimizer == Optimizer::kSgd) return true;
  const bool in_f32 = training.param_dtype == ParamDType::kF32 || training.master_weights == Master::kF32;
  return training.moments == (in_f32 ? Moments::kF32 : Moments::kBF16);
}

/// True for other values than the default that the closed form has.
bool is_modelled_of_torch(const Key& key, const CellConfig& cell) {
  if (key.path == "ranks") return has_ranks(cell);
  if (key.path == "training.deferred_init") return defers_init(cell) == is_sharded(cell);
  if (key.path == "model.bias") return cell.model.bias != Bias::kNone;
  if (key.path == "model.window" || key.path == "model.window_every") return cell.model.attention_sinks;
  if (key.path == "training.moments") return has_moments_of_torch(cell);
  static constexpr std::array<std::string_view, 33> kCovered{"mesh",
                                                             "context_parallel",
                                                             "expert_parallel",
                                                             "sharding",
                                                             "reduce_dtype",
                                                             "training.optimizer",
                                                             "training.param_dtype",
                                                             "model.vocabulary",
                                                             "model.head_dim",
                                                             "model.qk_norm",
                                                             "model.attention_sinks",
                                                             "model.swiglu_limit",
                                                             "model.kv_rank",
                                                             "model.q_rank",
                                                             "model.rope_dim",
                                                             "model.value_dim",
                                                             "model.head",
                                                             "model.positions",
                                                             "model.experts",
                                                             "model.top_k",
                                                             "model.expert_ffn",
                                                             "model.shared_experts",
                                                             "model.dense_layers",
                                                             "model.router",
                                                             "model.router_scale",
                                                             "model.expert_groups",
                                                             "model.top_groups",
                                                             "model.router_bias_rate",
                                                             "training.checkpoint_every",
                                                             "training.loss_chunks",
                                                             "training.frozen_layers",
                                                             "training.tokens",
                                                             "training.corpus"};
  return std::ranges::find(kCovered, key.path) != kCovered.end();
}

/// What torchao's float8 lacks, or keeps in 16 bits.
void add_uncovered_float8(const CellConfig& cell, const TorchLibrary& library, std::vector<std::string>& out) {
  const TrainingConfig& training = cell.training;
  if (training.recipe != library.float8_recipe)
    out.push_back(library.float8_recipe.empty()
                      ? fmt::format("training.recipe: {}; PyTorch by itself trains in bf16", training.recipe)
                      : fmt::format("training.recipe: {}; figures cover {} (a scale a tensor, from its amax) and bf16",
                                    training.recipe, library.float8_recipe));
  if (is_replicated(cell))
    out.emplace_back("sharding: ddp; figures of Float8Linear cover one rank and FSDP2; write fsdp");
  if (training.quantized_weights && (!is_sharded(cell) || mesh_of(cell).shards == 1))
    out.emplace_back("training.quantized_weights: torchao keeps weights in 16 bits; it can gather shards in eight");
  if (routes_tokens(cell.model))
    out.emplace_back(
        "model.top_k: Float8Linear computes products of all tokens, and PyTorch's grouped products of experts are in "
        "16 "
        "bits; no figures cover both; write `recipe: bf16`");
  if (has_latents(cell.model))
    out.emplace_back(
        "model.kv_rank: no figures cover Float8Linear's products of latents, whose columns need not be multiples of "
        "16; write `recipe: bf16`");
  if (is_selective(training.checkpoint))
    out.push_back(
        fmt::format("training.checkpoint: {} keeps what `mm` and `addmm` return, and Float8Linear's products are "
                    "`_scaled_mm` inside "
                    "an autograd function; write full, or `recipe: bf16`",
                    training.checkpoint.text()));
}

/// What cuDNN's kernel requires of attention whose values have another width than the keys.
void add_uncovered_latents(const CellConfig& cell, std::vector<std::string>& out) {
  const ModelConfig& model = cell.model;
  const std::int64_t keys = key_dim_of(model), values = value_dim_of(model);
  if (!has_latents(model) || cell.device == "cpu") return;
  if (cell.training.param_dtype == ParamDType::kF32)
    out.emplace_back("model.kv_rank: on CUDA figures cover latent attention in bf16; write `param_dtype: bf16`");
  constexpr std::int64_t kMost = 128, kMostOfFlash = 256, kAlignment = 8, kKeysOfDeepSeek = 192;
  const bool fits = std::max(keys, values) <= kMost && keys % kAlignment == 0 && values % kAlignment == 0;
  const bool is_flash = keys == values && keys <= kMostOfFlash && keys % kAlignment == 0;
  if (is_flash || fits || (keys == kKeysOfDeepSeek && values == kMost)) return;
  out.push_back(fmt::format(
      "model.value_dim: heads have keys of {} columns and values of {}; SDPA's kernels take equal "
      "multiples of 8 up to 256, 192 and 128, or multiples of 8 up to 128, and figures cover no other kernel; "
      "write such widths",
      keys, values));
}

/// What grouped products and FSDP2 require of the weights of experts.
void add_uncovered_experts(const CellConfig& cell, Program program, std::vector<std::string>& out) {
  if (!routes_tokens(cell.model)) return;
  constexpr std::int64_t kAlignment = 16;
  const std::int64_t bytes = cell.training.param_dtype == ParamDType::kF32 ? 4 : 2;
  const std::int64_t shards = is_sharded(cell) ? mesh_of(cell).shards : 1;
  const bool divides = program == Program::kTorchtitan && shards > cell.model.experts;
  const std::int64_t parts = shards / cell.expert_parallel;  // ranks that shard the same experts
  for (const auto& [key, width] :
       {std::pair(cell.model.expert_ffn > 0 ? "model.expert_ffn" : "model.ffn", mlp_width(cell.model)),
        std::pair("model.hidden", cell.model.hidden)}) {
    if (width * bytes % kAlignment != 0)
      out.push_back(
          fmt::format("{}: rows of {} values are no multiple of {} bytes, which torch._grouped_mm requires; "
                      "figures cover grouped products; write a multiple of {}",
                      key, width, kAlignment, kAlignment / bytes));
    if (divides && width % parts != 0)
      out.push_back(
          fmt::format("{}: with more shards than experts FSDP2 divides the rows of every expert, and {} ranks do not "
                      "divide {} rows; write a multiple of {}, a mesh of fewer shards, or a larger `expert_parallel`",
                      key, parts, width, parts));
  }
}

/// What PyTorch's ring attention was not compared with.
void add_uncovered_sequences(const CellConfig& cell, Program program, std::vector<std::string>& out) {
  if (cell.context_parallel == 1) return;
  const auto add = [&](bool is_uncovered, const char* reason) {
    if (is_uncovered) out.emplace_back(reason);
  };
  add(program == Program::kWorker,
      "context_parallel: the worker gives every rank entire sequences; remove it, or plan a torchtitan program with "
      "`--model`");
  add(is_replicated(cell), "sharding: with `context_parallel` figures cover FSDP2; write fsdp");
  add(cell.training.param_dtype == ParamDType::kF32,
      "training.param_dtype: with `context_parallel` figures cover layers in bf16; write bf16, for FP32 parameters "
      "with "
      "`master_weights: f32`");
  add(has_latents(cell.model), "model.kv_rank: no figures cover latent attention with `context_parallel`");
  add(eager::Numbers(cell, program, Operators::kCuda).learned_positions,
      "model.positions: with `context_parallel` figures cover models without a table of positions; write none");
  add(is_selective(cell.training.checkpoint),
      "training.checkpoint: with `context_parallel` figures cover recomputation of entire layers; write full");
}

/// What GPT-OSS's layers were not compared with: attention with sinks, and experts with biases and limits.
void add_uncovered_gpt_oss(const CellConfig& cell, Program program, bool is_float8, std::vector<std::string>& out) {
  const ModelConfig& model = cell.model;
  const bool has_limit = model.swiglu_limit > 0.0, has_sinks = model.attention_sinks, routes = routes_tokens(model);
  const bool has_biases = model.bias == Bias::kAll && model.form != "gpt";
  const auto add = [&](bool is_uncovered, const char* reason) {
    if (is_uncovered) out.emplace_back(reason);
  };
  if (program == Program::kWorker) {
    const auto refuse = [&](bool is_there, const char* key) {
      if (is_there)
        out.push_back(fmt::format(
            "{}: figures cover it in torchtitan's program, and not in the worker's; remove it, or plan a torchtitan "
            "program with `--model`",
            key));
    };
    refuse(has_sinks, "model.attention_sinks");
    refuse(has_limit, "model.swiglu_limit");
    refuse(has_biases, "model.bias");
    return;
  }
  if (!has_sinks && !has_limit && !has_biases) return;
  add(model.form != "llama", "model.form: figures cover `attention_sinks`, `swiglu_limit` and `bias` in llama");
  add(is_float8 && has_biases, "model.bias: no figures cover Float8Linear with biases of all products; write `qkv`");
  add((has_sinks || has_limit) && cell.training.param_dtype == ParamDType::kF32,
      "training.param_dtype: attention with sinks and experts with limits compute in bf16; write bf16, for FP32 "
      "parameters with `master_weights: f32`");
  add(has_sinks && model.qk_norm, "model.qk_norm: no figures cover it with `attention_sinks`");
  add(has_sinks && has_latents(model), "model.kv_rank: no figures cover latent attention with `attention_sinks`");
  constexpr std::int64_t kMostColumns = 256, kAlignment = 8;
  add(has_sinks && (head_dim_of(model) % kAlignment != 0 || head_dim_of(model) > kMostColumns),
      "model.head_dim: flash attention, which computes attention with sinks, takes multiples of 8 up to 256");
  add(has_limit && !routes, "model.swiglu_limit: figures cover limits of experts; write `top_k`, or remove it");
  add(routes && has_limit != has_biases,
      "model.swiglu_limit: figures cover experts with biases and limits, or with neither; write both `bias: true` and "
      "`swiglu_limit`");
  add(routes && has_limit && model.shared_experts > 0,
      "model.shared_experts: figures cover experts with limits without shared ones");
  add(routes && has_limit && model.dense_layers > 0,
      "model.dense_layers: figures cover models whose layers all have experts with limits");
}

}  // namespace

std::span<const TorchLibrary> torch_libraries() { return kLibraries; }

const TorchLibrary* torch_library_of(std::string_view release) {
  const auto* const found = std::ranges::find(kLibraries, release.substr(0, release.find('@')), &TorchLibrary::name);
  return found == kLibraries.end() ? nullptr : found;
}

std::vector<std::string> uncovered_by_torch(const CellConfig& cell, Arm arm, Program program,
                                            const TorchLibrary& library) {
  std::vector<std::string> out;
  const bool is_mlp = cell.model.layer == "layernorm_mlp" && program == Program::kWorker;
  if (cell.model.layer != "transformer_layer" && !is_mlp)
    out.push_back(fmt::format("model.layer: {}; figures cover transformer_layer{}", cell.model.layer,
                              program == Program::kWorker ? " and layernorm_mlp" : ""));
  const bool has_vocabulary = cell.model.vocabulary > 0;
  if (!has_vocabulary && program == Program::kTorchtitan)
    out.emplace_back("model.vocabulary: 0; a torchtitan program is a language model");
  if (has_vocabulary != (cell.training.loss == Loss::kCrossEntropy))
    out.emplace_back("training.loss: figures cover cross_entropy of a vocabulary, and sum or mse of layers");
  if (cell.training.loss_chunks > 1 && is_replicated(cell))
    out.emplace_back(
        "training.loss_chunks: DistributedDataParallel reduces a gradient when backward makes it, and of the head each "
        "part of the loss makes one; write `sharding: fsdp`");
  if (cell.expert_parallel > 1 && program == Program::kWorker)
    out.emplace_back(
        "expert_parallel: figures cover it in torchtitan's program, and not in the worker's; remove it, or plan a "
        "torchtitan program with `--model`");
  add_uncovered_experts(cell, program, out);
  add_uncovered_latents(cell, out);
  add_uncovered_sequences(cell, program, out);
  const bool is_float8 = arm != Arm::kBf16 && cell.training.recipe != kBf16Recipe;
  add_uncovered_gpt_oss(cell, program, is_float8, out);
  if (is_float8) add_uncovered_float8(cell, library, out);
  if (cell.training.master_weights == Master::kRemainder)
    out.emplace_back("training.master_weights: PyTorch's Adam has FP32 masters or none");
  const std::int64_t kv_heads = cell.model.kv_heads;
  const bool is_on_host = cell.device == "cpu";
  if (cell.training.param_dtype == ParamDType::kF32 && !is_on_host && !is_mlp && kv_heads != 0 &&
      kv_heads != cell.model.heads)
    out.emplace_back(
        "model.kv_heads: SDPA has no kernel on CUDA for FP32 whose K and V have fewer heads than Q; it then keeps the "
        "scores of all heads, which no figures cover; leave `kv_heads` out, or train in bf16");
  if (cell.training.master_weights == Master::kF32 && program == Program::kTorchtitan && !is_sharded(cell))
    out.emplace_back(
        "training.master_weights: a torchtitan program has FP32 masters only as the parameters that FSDP2 shards, over "
        "one rank too; write `sharding: fsdp`");
  const auto more = unmodelled_keys(
      cell, arm, [&](const Key& key) { return is_modelled_of_torch(key, cell); }, kTorchReasons, "figures");
  out.insert(out.end(), more.begin(), more.end());
  // The default of the key is not what PyTorch's Adam does with BF16 parameters.
  if (!has_moments_of_torch(cell) && cell.training.moments == CellConfig{}.training.moments)
    out.emplace_back(
        "training.moments: PyTorch's Adam keeps moments in the type that it updates, here bf16; write `moments: bf16`, "
        "or `master_weights: f32`");
  return out;
}

}  // namespace fp8lab
