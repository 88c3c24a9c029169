#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

class ChainNode;

/// One operation of a fused chain. It saves through the chain's node, and finds its entries again from index `first`
/// on.
class FusibleOp {
 public:
  virtual ~FusibleOp() = default;
  /// Called before the previous operation runs. Returns what this operation needs from it for the cast of its output.
  virtual OperandRequest begin_forward(Runtime&) { return {}; }
  virtual Operand forward(Runtime& runtime, ChainNode& node, Operand x, const OperandRequest& next) = 0;
  /// True if backward() uses the amax of `grad`.
  virtual bool measures_gradient() const { return false; }
  /// Returns the gradient of x, with its amax if `measure` and if the operation measures it. `grad` is in high
  /// precision.
  virtual Operand backward(Runtime& runtime, Restored& saved, std::size_t first, Operand grad, bool measure) = 0;
};

/// How a chain runs in passes of one kind: with a backward, or without one (validation, and the first forward of a
/// checkpointed region, which keeps nothing for backward).
struct FusionPlan {
  struct Step {
    FusibleOp* op = nullptr;
    /// Backward measures the amax of the gradient that it returns, for the operation before. Only in passes with a
    /// backward.
    bool measures = false;
  };
  std::vector<Step> steps;  ///< in the order of forward
};

/// A chain of operations in one node. One context has everything that its operations save. All of it is restored at the
/// start of backward. Each linear frees its input once it has run; the rest is freed when backward ends (or with the
/// node, depending on the fuser's shell policy). Each kind of pass has a plan, which is made once: under
/// recomputation the kinds alternate.
class OpFuser final : public Module {
 public:
  OpFuser(std::string name, std::vector<std::unique_ptr<FusibleOp>> ops)
      : name_(std::move(name)), ops_(std::move(ops)) {}
  Variable forward(Runtime& runtime, const Variable& x) override;
  /// The plan of passes with a backward, or of passes without; made if it is not there.
  const FusionPlan& plan(Runtime& runtime, bool with_backward);

 private:
  std::string name_;
  std::vector<std::unique_ptr<FusibleOp>> ops_;
  std::array<std::optional<FusionPlan>, 2> plans_;  ///< without a backward, with one
};

/// An MLP with its norm: a chain of norm, linear, activation and linear if `config.fuse_mlp`, otherwise a LayerNormMlp.
std::unique_ptr<Module> make_mlp(Build& build, const std::string& name, const LayerConfig& config);

}  // namespace fp8lab
