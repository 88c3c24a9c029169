#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fp8lab {

/// Kinds of holders that keep bytes alive. A block with several holders is attributed to the kind that comes first in
/// this list, so a parameter that is also saved for backward counts as a parameter.
enum class HolderKind : std::uint8_t {
  kParameter,  ///< a parameter, or the biases by which a router chooses
  kGradient,   ///< the gradient of a parameter
  kOptimizerState,
  kRecipeState,  ///< amax histories, scales, tokens of each expert, and copies of weights that modules cache
  kInput,
  kOutput,     ///< the model's output and the loss
  kUnsharded,  ///< an unsharded parameter or its gradient, gathered for a pass; freed by the next reshard
  kContext,    ///< an operation's context, which lives as long as its node
  kSavedSlot,  ///< the engine's saved slot of a node, freed once the node has run
  kInFlight,   ///< an operation's result on its way to the next operation
  kWorkspace,  ///< temporaries of one operation
};
inline constexpr int kHolderKinds = 11;

constexpr std::string_view name(HolderKind kind) {
  switch (kind) {
    case HolderKind::kParameter: return "parameter";
    case HolderKind::kGradient: return "gradient";
    case HolderKind::kOptimizerState: return "optimizer state";
    case HolderKind::kRecipeState: return "recipe state";
    case HolderKind::kInput: return "input";
    case HolderKind::kOutput: return "output";
    case HolderKind::kUnsharded: return "unsharded";
    case HolderKind::kContext: return "context";
    case HolderKind::kSavedSlot: return "saved slot";
    case HolderKind::kInFlight: return "in flight";
    case HolderKind::kWorkspace: return "workspace";
  }
  return "?";
}

/// True for kinds that the schedule keeps after backward. Bytes that no such holder keeps are retained bytes.
constexpr bool outlives_backward(HolderKind kind) { return kind <= HolderKind::kOutput; }

/// Index into the ledger's table of holders.
using HolderId = std::uint32_t;

struct Holder {
  HolderKind kind = HolderKind::kWorkspace;
  std::string owner;  ///< "layers[2].attention"; empty if the kind is enough to identify the holder
  std::string what;   ///< "q"
};

/// Training phases. `step` counts from 0; kIdle is the time before and between steps.
enum class PhaseKind : std::uint8_t { kSetup, kForward, kBackward, kOptimizer, kIdle };
inline constexpr int kPhaseKinds = 5;

constexpr std::string_view name(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kSetup: return "setup";
    case PhaseKind::kForward: return "forward";
    case PhaseKind::kBackward: return "backward";
    case PhaseKind::kOptimizer: return "optimizer";
    case PhaseKind::kIdle: return "idle";
  }
  return "?";
}

struct Phase {
  PhaseKind kind = PhaseKind::kSetup;
  int step = 0;
};

}  // namespace fp8lab
