#include "nn/layers/layernorm_linear.h"

#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

class LayerNormLinearNode final : public ModuleNode {
 public:
  LayerNormLinearNode(Runtime& runtime, std::shared_ptr<Node> input, NormCore& norm, LinearCore& core)
      : ModuleNode(runtime, core.name(), {std::move(input)}, runtime.behaviors.module_shells),
        norm_(norm),
        core_(core) {}

  std::vector<Gradient> backward_of(Gradient grad) override {
    Restored saved = restore();
    const std::size_t product = norm_entries(norm_);
    const Gradient grad_norm = core_.backward(runtime(), operand_of(std::move(grad)), saved, product, product + 1);
    std::vector<Gradient> gradients;
    gradients.push_back({.plain = norm_.backward(runtime(), grad_norm.plain, norm_saved(saved, norm_, 0))});
    return gradients;
  }

 private:
  NormCore& norm_;
  LinearCore& core_;
};

}  // namespace

Variable LayerNormLinear::forward(Runtime& runtime, const Variable& x) {
  NormCore::Forward normed = norm_.forward(runtime, x.value, core_.begin_forward(runtime));
  LinearCore::Forward result = core_.forward(runtime, std::move(normed.y));
  const auto node = std::make_shared<LayerNormLinearNode>(runtime, x.producer, norm_, core_);
  node->save_norm(norm_, x.value, normed);
  node->save_activation("norm_out", result.x);
  node->save_weight("weight", std::move(result.weight));
  return {std::move(result.y), node, std::move(result.quantized_y)};
}

}  // namespace fp8lab
