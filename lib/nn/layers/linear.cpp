#include "nn/layers/linear.h"

#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

class LinearNode final : public ModuleNode {
 public:
  LinearNode(Runtime& runtime, const Variable& input, LinearCore& core)
      : ModuleNode(runtime, core.name(), {input.producer}, runtime.behaviors.module_shells),
        core_(core),
        came_quantized_(!input.quantized.empty()) {}

  std::vector<Gradient> backward_of(Gradient grad) override {
    Restored saved = restore();
    std::vector<Gradient> gradients;
    gradients.push_back(core_.backward(runtime(), operand_of(std::move(grad)), saved, 0, 1, came_quantized_));
    return gradients;
  }

 private:
  LinearCore& core_;
  bool came_quantized_;
};

}  // namespace

Variable Linear::forward(Runtime& runtime, const Variable& x) {
  core_.begin_forward(runtime);
  LinearCore::Forward result = core_.forward(runtime, {.plain = x.value, .quantized = x.quantized});
  const auto node = std::make_shared<LinearNode>(runtime, x, core_);
  node->save_activation("x", result.x);
  node->save_weight("weight", std::move(result.weight));
  return {std::move(result.y), node, std::move(result.quantized_y)};
}

}  // namespace fp8lab
