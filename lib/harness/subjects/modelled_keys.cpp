#include "harness/subjects/modelled_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fp8lab {
namespace {

constexpr std::array<std::string_view, 45> kWithoutTerms{"device",
                                                         "subject",
                                                         "capacity",
                                                         "reshard_after_forward",
                                                         "gather_ahead",
                                                         "versions.before",
                                                         "versions.after",
                                                         "model.layer",
                                                         "model.form",
                                                         "model.layers",
                                                         "model.hidden",
                                                         "model.heads",
                                                         "model.kv_heads",
                                                         "model.ffn",
                                                         "model.seq",
                                                         "model.batch",
                                                         "model.init_std",
                                                         "model.scaled_residuals",
                                                         "training.steps",
                                                         "training.micro_batches",
                                                         "training.loss",
                                                         "training.clip_norm",
                                                         "training.keep_loss",
                                                         "training.learning_rate",
                                                         "training.learning_rate_schedule",
                                                         "training.warmup_steps",
                                                         "training.final_learning_rate",
                                                         "training.decay_steps",
                                                         "training.beta1",
                                                         "training.beta2",
                                                         "training.weight_decay",
                                                         "training.decoupled_decay",
                                                         "training.decay_only_matrices",
                                                         "training.master_weights",
                                                         "training.recipe",
                                                         "training.quantized_weights",
                                                         "training.checkpoint",
                                                         "training.seed",
                                                         "training.data",
                                                         "training.fp8_sums",
                                                         "training.recipe_options.fp8_format",
                                                         "training.recipe_options.amax_algorithm",
                                                         "training.recipe_options.margin",
                                                         "training.recipe_options.epsilon",
                                                         "training.recipe_options.power_of_two_scales"};

}  // namespace

bool changes_no_terms(std::string_view path) { return std::ranges::find(kWithoutTerms, path) != kWithoutTerms.end(); }

std::vector<std::string> unmodelled_keys(const CellConfig& cell, Arm arm,
                                         const std::function<bool(const Key&)>& modelled,
                                         std::span<const KeyReason> reasons, std::string_view figures) {
  std::vector<std::string> out;
  const CellConfig plain;
  for (const Key& key : keys()) {
    const Value value = key.get(cell);
    if (key.path == "arch" || value == key.get(plain) || changes_no_terms(key.path) || modelled(key)) continue;
    if (key.path == "fix" && arm != Arm::kBefore) continue;                    // it is there that the fix is reverted
    if (key.path.starts_with("training.fp8_") && arm == Arm::kBf16) continue;  // nothing is in eight bits there
    const auto reason = std::ranges::find(reasons, key.path, &KeyReason::key);
    out.push_back(fmt::format("{}: {}", key.path,
                              reason != reasons.end()
                                  ? std::string(reason->text)
                                  : fmt::format("{}; {} cover cells that leave it out", to_text(value), figures)));
  }
  return out;
}

}  // namespace fp8lab
