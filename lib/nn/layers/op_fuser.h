#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

class ChainNode;

/// One operation of a fused chain. It saves through the chain's node and finds its own entries again behind `first`.
class FusibleOp {
 public:
  virtual ~FusibleOp() = default;
  /// Before the operation ahead of it runs: what that one does for the cast of what it hands over.
  virtual OperandRequest begin_forward(Runtime&) { return {}; }
  virtual Operand forward(Runtime& runtime, ChainNode& node, Operand x, const OperandRequest& next) = 0;
  /// Whether backward() has use for the amax of `grad`.
  virtual bool measures_gradient() const { return false; }
  /// The gradient of x, with its amax where it measures on the way and `measure` asks for it. `grad` is stored.
  virtual Operand backward(Runtime& runtime, Restored& saved, std::size_t first, Operand grad, bool measure) = 0;
};

/// A chain of operations that is one node: one context for everything its operations save, restored at once when
/// backward begins and released at once when it ends (or with the node, as the fuser's shell policy says).
class OpFuser final : public Module {
 public:
  OpFuser(std::string name, std::vector<std::unique_ptr<FusibleOp>> ops)
      : name_(std::move(name)), ops_(std::move(ops)) {}
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  std::string name_;
  std::vector<std::unique_ptr<FusibleOp>> ops_;
};

/// norm, linear, activation, linear: the MLP of a transformer layer as a chain.
std::unique_ptr<Module> make_fused_mlp(Build& build, const std::string& name, const LayerConfig& config);

}  // namespace fp8lab
