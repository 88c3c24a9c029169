#include "nn/layers/shared_experts.h"

#include <utility>

namespace fp8lab {

SharedExperts::SharedExperts(Build& build, const std::string& name, const LayerConfig& config)
    : activation_(name + ".shared", config.activation()),
      fc1_(build, name + ".shared_fc1", {.in = config.hidden, .out = config.shared_inputs(), .bias = config.form.bias}),
      fc2_(build, name + ".shared_fc2",
           {.in = config.shared_ffn(), .out = config.hidden, .bias = config.form.bias, .to_residual = true}) {}

SharedExperts::Forward SharedExperts::forward(Runtime& runtime, const Tensor& n) {
  fc1_.begin_forward(runtime);
  Forward out;
  out.fc1 = fc1_.forward(runtime, {.plain = n});
  out.fc2 = fc2_.forward(runtime, activation_.forward(runtime, out.fc1.y, fc2_.begin_forward(runtime)));
  return out;
}

void SharedExperts::save(ModuleNode& node, Forward forward) {
  node.save_activation("shared_in", forward.fc1.x);
  node.save_weight("shared_weight1", std::move(forward.fc1.weight));
  node.save("shared_activation_in", forward.fc1.y);
  node.save_activation("shared_activation_out", forward.fc2.x);
  node.save_weight("shared_weight2", std::move(forward.fc2.weight));
}

Tensor SharedExperts::backward(Runtime& runtime, const Tensor& grad, Restored& saved, std::size_t first) {
  Tensor grad_activation = fc2_.backward(runtime, {.plain = grad}, saved, first + 3, first + 4).plain;
  Operand grad_fc1 = activation_.backward(runtime, grad_activation, saved.tensor(first + 2), fc1_.measures_gradient());
  grad_activation = {};
  return fc1_.backward(runtime, std::move(grad_fc1), saved, first, first + 1).plain;
}

}  // namespace fp8lab
