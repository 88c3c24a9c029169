#include "harness/scenario/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

using Broken = std::optional<BrokenRule>;

Broken broken_model_rule(const ModelConfig& m, std::int64_t micro_batches) {
  if (m.hidden == 0) return BrokenRule{"model.hidden", "missing; a model needs its width"};
  if (m.seq == 0) return BrokenRule{"model.seq", "missing; a model needs its tokens per sequence"};
  if (m.hidden % m.heads != 0)
    return BrokenRule{"model.heads", fmt::format("hidden {} is not a multiple of heads {}", m.hidden, m.heads)};
  if (m.kv_heads != 0 && m.heads % m.kv_heads != 0)
    return BrokenRule{"model.kv_heads", fmt::format("heads {} is not a multiple of kv_heads {}", m.heads, m.kv_heads)};
  // A step uses at most a few hundred bytes for each of these elements, so byte counts fit in 64 bits below this limit.
  constexpr double kMostElements = 0x1p52;
  const auto layers = static_cast<double>(m.layers), hidden = static_cast<double>(m.hidden);
  const double ffn = static_cast<double>(m.ffn == 0 ? 4 * m.hidden : m.ffn), widest = std::max(hidden, ffn);
  if (layers * static_cast<double>(m.seq) * static_cast<double>(m.batch) * widest > kMostElements)
    return BrokenRule{"model.batch",
                      fmt::format("activations of {} layers x seq {} x batch {} x {} elements are above 2^52", m.layers,
                                  m.seq, m.batch, widest)};
  if (layers * hidden * (4.0 * hidden + 3.0 * ffn) > kMostElements)
    return BrokenRule{
        "model.layers",
        fmt::format("weights of {} layers of hidden {} and ffn {} are above 2^52 elements", m.layers, m.hidden, ffn)};
  const double passed = layers * (static_cast<double>(m.seq) * static_cast<double>(m.batch) * widest +
                                  hidden * (4.0 * hidden + 3.0 * ffn));
  if (micro_batches > 1 && static_cast<double>(micro_batches) * passed > kMostElements)
    return BrokenRule{"training.micro_batches",
                      fmt::format("activations and weights of {} passes are above 2^52 elements", micro_batches)};
  return std::nullopt;
}

Broken broken_ranks_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  const std::int64_t most = vocabulary.max_ranks ? vocabulary.max_ranks(cell.device) : 1;
  if (cell.ranks > most)
    return BrokenRule{"ranks", fmt::format("{} ranks, but device '{}' trains on at most {} in one process", cell.ranks,
                                           cell.device, most)};
  const MeshText mesh = mesh_of(cell);
  if (const std::int64_t takes = std::int64_t{mesh.replicas} * mesh.shards; takes != cell.ranks)
    return BrokenRule{"mesh", fmt::format("{} takes {} rank{}, but `ranks` is {}; make them equal", cell.mesh, takes,
                                          takes == 1 ? "" : "s", cell.ranks)};
  if (is_sharded(cell)) return std::nullopt;
  if (!cell.mesh.empty())
    return BrokenRule{"mesh", "a mesh means nothing under `sharding: none`; remove one of the two"};
  if (cell.ranks > 1)
    return BrokenRule{"sharding",
                      fmt::format("none, but there are {0} ranks; `mesh: {0}x1` keeps the model unsharded on "
                                  "each of them",
                                  cell.ranks)};
  if (!cell.reshard_after_forward)
    return BrokenRule{"reshard_after_forward",
                      "nothing is gathered without sharding; remove it, or write `sharding: fsdp`"};
  if (cell.gather_ahead)
    return BrokenRule{"gather_ahead", "nothing is gathered without sharding; remove it, or write `sharding: fsdp`"};
  if (defers_init(cell))
    return BrokenRule{"training.deferred_init",
                      "nobody initialises the parameters later without sharding; remove it, or write `sharding: fsdp`"};
  return std::nullopt;
}

Broken broken_subject_rule(const CellConfig& cell) {
  const VersionsConfig& versions = cell.versions;
  if (!is_library(cell)) {
    if (versions.before.empty() && versions.after.empty()) return std::nullopt;
    return BrokenRule{versions.before.empty() ? "versions.after" : "versions.before",
                      "this program's own runtime has one version; name a library in `subject` "
                      "(`subject: transformer_engine`), or remove `versions`"};
  }
  if (!cell.fix.empty())
    return BrokenRule{"fix",
                      fmt::format("it is a switch of this program's own runtime, which `subject: {}` does not "
                                  "run; name two versions of the library in `versions`, or remove one of the two",
                                  cell.subject)};
  return std::nullopt;
}

constexpr std::array<std::string_view, 5> kOptimizerKeys{"training.master_weights", "training.moments",
                                                         "training.weight_decay", "training.clip_norm",
                                                         "training.weight_average"};

Broken broken_optimizer_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  const TrainingConfig& t = cell.training;
  const auto changed = [&](std::string_view path) {
    const Key* key = find_key(path);
    return key->get(cell) != key->get(CellConfig{});
  };
  if (t.optimizer == Optimizer::kNone)
    for (const std::string_view path : kOptimizerKeys)
      if (changed(path))
        return BrokenRule{std::string(path), "there is no optimizer to heed it; remove it, or write `optimizer: adam`"};
  if (t.optimizer == Optimizer::kForeachAdam)
    for (const std::string_view path : {"training.master_weights", "training.moments"})
      if (changed(path))
        return BrokenRule{std::string(path),
                          "foreach_adam updates the parameters themselves, with moments in f32; "
                          "remove it, or write `optimizer: adam`"};
  if (t.master_weights == Master::kRemainder && t.param_dtype != ParamDType::kBF16)
    return BrokenRule{"training.master_weights",
                      fmt::format("remainder keeps the 16 bits that bf16 parameters lack, but param_dtype is {}; write "
                                  "none, f32 or `param_dtype: bf16`",
                                  t.param_dtype.text())};
  const bool eight_bits = t.quantized_weights && (!vocabulary.quantizes || vocabulary.quantizes(t.recipe));
  if (eight_bits && t.optimizer == Optimizer::kAdam && t.master_weights == Master::kNone)
    return BrokenRule{"training.master_weights",
                      fmt::format("{}, but adam needs f32 or remainder where quantized_weights are on: a step is "
                                  "smaller than what eight bits can distinguish",
                                  t.master_weights.text())};
  return std::nullopt;
}

Broken broken_cache_rule(const CellConfig& cell) {
  if (!is_sharded(cell)) return std::nullopt;
  if (cell.training.cache_weights)
    return BrokenRule{"training.cache_weights", "layers of a sharded model cache no weights; remove one of the two"};
  if (cell.training.validation_batches > 0)
    return BrokenRule{"training.validation_batches", "sharded models are not validated; remove one of the two"};
  return std::nullopt;
}

Broken broken_resume_rule(const TrainingConfig& t) {
  if (t.resume_at == 0) return std::nullopt;
  if (t.resume_at >= t.steps)
    return BrokenRule{"training.resume_at",
                      fmt::format("{} comes after the last of {} steps; the first is step 0", t.resume_at, t.steps)};
  if (t.optimizer == Optimizer::kForeachAdam)
    return BrokenRule{"training.resume_at",
                      "the state of foreach_adam is not saved; write `optimizer: adam` or `optimizer: none`"};
  if (t.weight_average)
    return BrokenRule{"training.resume_at", "the average of the weights is not saved; remove one of the two"};
  return std::nullopt;
}

}  // namespace

std::optional<BrokenRule> broken_general_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  if (cell.control != Control::kNone && !cell.fix.empty())
    return BrokenRule{"control", "a control cell's before arm reverts no fix; remove `control` or `fix`"};
  Broken broken = broken_model_rule(cell.model, cell.training.micro_batches);
  if (!broken) broken = broken_ranks_rule(cell, vocabulary);
  if (!broken) broken = broken_subject_rule(cell);
  if (!broken) broken = broken_optimizer_rule(cell, vocabulary);
  if (!broken) broken = broken_cache_rule(cell);
  if (!broken) broken = broken_resume_rule(cell.training);
  return broken;
}

}  // namespace fp8lab
