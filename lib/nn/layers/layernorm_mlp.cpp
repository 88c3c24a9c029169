#include "nn/layers/layernorm_mlp.h"

#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

class LayerNormMlpNode final : public ModuleNode {
 public:
  struct Parts {
    NormCore& norm;
    LinearCore& fc1;
    LinearCore& fc2;
    const ActivationCore& activation;
  };

  LayerNormMlpNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, const Parts& parts)
      : ModuleNode(runtime, std::move(name), {std::move(input)}, runtime.behaviors.module_shells), parts_(parts) {}

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    const std::size_t first = norm_entries(parts_.norm);  // norm_out, W1, activation input, activation output, W2
    Tensor grad_activation =
        parts_.fc2.backward(runtime(), {.plain = std::move(grad)}, saved, first + 3, first + 4).plain;
    Operand grad_fc1 =
        parts_.activation.backward(runtime(), grad_activation, saved.tensor(first + 2), parts_.fc1.measures_gradient());
    grad_activation = {};
    const Tensor grad_norm = parts_.fc1.backward(runtime(), std::move(grad_fc1), saved, first, first + 1).plain;
    return {parts_.norm.backward(runtime(), grad_norm, norm_saved(saved, parts_.norm, 0))};
  }

 private:
  Parts parts_;
};

}  // namespace

LayerNormMlp::LayerNormMlp(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name),
      activation_(name, config.activation()),
      norm_(build, name + ".norm", config.form.norm, config.hidden, config.form.bias),
      fc1_(build, name + ".fc1", {.in = config.hidden, .out = config.activation_inputs(), .bias = config.form.bias}),
      fc2_(build, name + ".fc2",
           {.in = config.ffn, .out = config.hidden, .bias = config.form.bias, .to_residual = true}) {}

Variable LayerNormMlp::forward(Runtime& runtime, const Variable& x) {
  NormCore::Forward normed = norm_.forward(runtime, x.value, fc1_.begin_forward(runtime));
  LinearCore::Forward fc1 = fc1_.forward(runtime, std::move(normed.y));
  LinearCore::Forward fc2 = fc2_.forward(runtime, activation_.forward(runtime, fc1.y, fc2_.begin_forward(runtime)));

  const auto node = std::make_shared<LayerNormMlpNode>(
      runtime, name_, x.producer,
      LayerNormMlpNode::Parts{.norm = norm_, .fc1 = fc1_, .fc2 = fc2_, .activation = activation_});
  node->save_norm(norm_, x.value, normed);
  node->save_activation("norm_out", fc1.x);
  node->save_weight("weight1", std::move(fc1.weight));
  node->save("activation_in", fc1.y);
  node->save_activation("activation_out", fc2.x);
  node->save_weight("weight2", std::move(fc2.weight));
  return {std::move(fc2.y), node};
}

}  // namespace fp8lab
