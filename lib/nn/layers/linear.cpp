#include "nn/layers/linear.h"

#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

class LinearNode final : public ModuleNode {
 public:
  LinearNode(Runtime& runtime, std::shared_ptr<Node> input, LinearCore& core)
      : ModuleNode(runtime, core.name(), {std::move(input)}, runtime.behaviors.module_shells), core_(core) {}

  std::vector<Gradient> backward_of(Gradient grad) override {
    Restored saved = restore();
    std::vector<Gradient> gradients;
    gradients.push_back(core_.backward(runtime(), operand_of(std::move(grad)), saved, 0, 1));
    return gradients;
  }

 private:
  LinearCore& core_;
};

}  // namespace

Variable Linear::forward(Runtime& runtime, const Variable& x) {
  core_.begin_forward(runtime);
  LinearCore::Forward result = core_.forward(runtime, {.plain = x.value, .quantized = x.quantized});
  const auto node = std::make_shared<LinearNode>(runtime, x.producer, core_);
  node->save_activation("x", result.x);
  node->save_weight("weight", std::move(result.weight));
  return {std::move(result.y), node, std::move(result.quantized_y)};
}

}  // namespace fp8lab
