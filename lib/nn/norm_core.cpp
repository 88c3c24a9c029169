#include "nn/norm_core.h"

#include <utility>

namespace fp8lab {

NormCore::NormCore(Build& build, const std::string& name, NormKind kind, std::int64_t columns)
    : name_(name), kind_(kind), gamma_(make_parameter(build, name + ".gamma", {columns}, Init::kOnes)) {
  if (kind == NormKind::kLayerNorm) beta_ = make_parameter(build, name + ".beta", {columns}, Init::kZeros);
}

NormOutputs NormCore::forward(Runtime& runtime, const Tensor& x) {
  return norm_forward(runtime.device, {.kind = kind_,
                                       .x = x,
                                       .gamma = gamma_->value,
                                       .beta = beta_ ? beta_->value : Tensor(),
                                       .y_holder = runtime.workspace(name_),
                                       .statistics_holder = runtime.workspace(name_)});
}

Tensor NormCore::backward(Runtime& runtime, const Tensor& grad_y, const Saved& saved) {
  NormGradients gradients = norm_backward(runtime.device, {.kind = kind_,
                                                           .grad_y = grad_y,
                                                           .x = saved.x,
                                                           .gamma = gamma_->value,
                                                           .mean = saved.mean,
                                                           .rstd = saved.rstd,
                                                           .grad_x_holder = runtime.in_flight(name_),
                                                           .grad_gamma_holder = gamma_->grad_holder,
                                                           .grad_beta_holder = beta_ ? beta_->grad_holder : 0});
  gamma_->accumulate(runtime.device, std::move(gradients.gamma));
  if (beta_) beta_->accumulate(runtime.device, std::move(gradients.beta));
  return std::move(gradients.x);
}

}  // namespace fp8lab
