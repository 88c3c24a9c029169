#include "optim/adam.h"

#include <cmath>
#include <utility>

#include "ops/elementwise.h"

namespace fp8lab {

Adam::Adam(std::vector<Parameter*> parameters, const AdamOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  tensors_.reserve(parameters_.size());
}

void Adam::make_state(Runtime& runtime) {
  Device& device = runtime.device;
  for (const Parameter* parameter : parameters_) {
    State& state = states_.emplace_back();
    const TensorSpec spec{parameter->value.shape(), DType::kF32};
    state.exp_avg = device.allocate(spec, device.holder(HolderKind::kOptimizerState, parameter->name, "exp_avg"));
    state.exp_avg_sq = device.allocate(spec, device.holder(HolderKind::kOptimizerState, parameter->name, "exp_avg_sq"));
    fill(device, state.exp_avg, 0.0f);
    fill(device, state.exp_avg_sq, 0.0f);
  }
}

void Adam::step(Runtime& runtime) {
  if (states_.empty()) make_state(runtime);
  ++steps_;
  tensors_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->grad) continue;
    tensors_.push_back({.param = parameters_[i]->value.view(),
                        .grad = parameters_[i]->grad.view(),
                        .exp_avg = states_[i].exp_avg.view(),
                        .exp_avg_sq = states_[i].exp_avg_sq.view(),
                        .master = {}});
  }
  const auto correction = [&](double beta) { return static_cast<float>(1.0 - std::pow(beta, static_cast<double>(steps_))); };
  runtime.device.launch(&KernelTable::adam, AdamArgs{.tensors = tensors_,
                                                     .learning_rate = static_cast<float>(options_.learning_rate),
                                                     .beta1 = static_cast<float>(options_.beta1),
                                                     .beta2 = static_cast<float>(options_.beta2),
                                                     .epsilon = static_cast<float>(options_.epsilon),
                                                     .weight_decay = static_cast<float>(options_.weight_decay),
                                                     .decoupled_decay = options_.decoupled_decay,
                                                     .bias_correction1 = correction(options_.beta1),
                                                     .bias_correction2 = correction(options_.beta2)});
}

}  // namespace fp8lab
