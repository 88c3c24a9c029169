#include "fixes/fixes.h"

#include <fmt/core.h>

#include <array>

#include "core/check.h"

namespace fp8lab {
namespace {

constexpr std::string_view kAttentionReports[] = {"TransformerEngine#1935", "TransformerEngine#2772"};
constexpr std::string_view kFuserReports[] = {"TransformerEngine#2750"};
constexpr std::string_view kModuleReports[] = {"TransformerEngine#1500"};

constexpr std::array kFixes = {
    Fix{.name = "release_attention_tensors",
        .upstream = kAttentionReports,
        .symptom = "FP8 fused attention keeps Q, K and V of every layer alive after backward until the loss goes",
        .decision = "the shells of attention's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.attention_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_fuser_tensors",
        .upstream = kFuserReports,
        .symptom = "the op fuser keeps the quantized weight copies of every fused layer alive after backward",
        .decision = "the shells of a fused chain's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.fuser_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "release_module_tensors",
        .upstream = kModuleReports,
        .symptom = "Linear, LayerNormLinear and LayerNormMLP keep their quantized weight copies alive after backward",
        .decision = "the shells of a module's saved storage move out of the context when backward restores them",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kRestoreAndKeep; }},
    Fix{.name = "empty_module_shells",
        .upstream = kModuleReports,
        .symptom = "quantized weight copies stay on the device from forward on, so recomputation and offload free nothing",
        .decision = "a shell lets go of its buffers when they are saved for backward",
        .revert = [](Behaviors& b) { b.module_shells = ShellPolicy::kKeepFromForward; }},
};

}  // namespace

std::span<const Fix> fixes() { return kFixes; }

const Fix& fix(std::string_view name) {
  std::string known;
  for (const Fix& row : kFixes) {
    if (row.name == name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  fail(fmt::format("fix '{}' is not known; the fixes are {}", name, known));
}

Behaviors behaviors_without(std::span<const std::string_view> names) {
  Behaviors behaviors;
  for (std::string_view name : names) fix(name).revert(behaviors);
  return behaviors;
}

}  // namespace fp8lab
