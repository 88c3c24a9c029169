#include "nn/cores/norm_core.h"

#include <utility>

namespace fp8lab {

NormCore::NormCore(Build& build, const std::string& name, NormKind kind, std::int64_t columns, bool bias)
    : name_(name), kind_(kind), gamma_(make_parameter(build, name + ".gamma", {columns}, Init::kOnes)) {
  if (kind == NormKind::kLayerNorm && bias) beta_ = make_parameter(build, name + ".beta", {columns}, Init::kZeros);
}

NormCore::Forward NormCore::forward(Runtime& runtime, const Tensor& x, const OperandRequest& request) {
  NormInputs inputs{.kind = kind_,
                    .x = x,
                    .gamma = gamma_->value,
                    .beta = beta_ ? beta_->value : Tensor(),
                    .y_holder = runtime.workspace(name_),
                    .statistics_holder = runtime.workspace(name_)};
  if (request.cast) {
    NormQuantizedOutputs made = norm_quantize(runtime.device, inputs, *request.cast);
    return {.y = {.quantized = std::move(made.y)}, .mean = std::move(made.mean), .rstd = std::move(made.rstd)};
  }
  if (request.measure) inputs.amax = allocate_amax(runtime.device);
  NormOutputs made = norm_forward(runtime.device, inputs);
  return {.y = {.plain = std::move(made.y), .amax = std::move(inputs.amax)},
          .mean = std::move(made.mean),
          .rstd = std::move(made.rstd)};
}

Tensor NormCore::backward(Runtime& runtime, const Tensor& grad_y, const Saved& saved) {
  NormGradients gradients = norm_backward(runtime.device, {.kind = kind_,
                                                           .grad_y = grad_y,
                                                           .x = saved.x,
                                                           .gamma = gamma_->value,
                                                           .mean = saved.mean,
                                                           .rstd = saved.rstd,
                                                           .has_beta = beta_ != nullptr,
                                                           .grad_x_holder = runtime.in_flight(name_),
                                                           .grad_gamma_holder = gamma_->grad_holder,
                                                           .grad_beta_holder = beta_ ? beta_->grad_holder : 0});
  gamma_->accumulate(runtime.device, std::move(gradients.gamma));
  if (beta_) beta_->accumulate(runtime.device, std::move(gradients.beta));
  return std::move(gradients.x);
}

}  // namespace fp8lab
