#include "ops/norm.h"

#include <string>
#include <string_view>

#include "core/check.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

void check_input(std::string_view op, const Tensor& x, const Tensor& gamma) {
  check_real(op, {"x", x});
  if (x.cols() == 0) fail(std::string(op) + ": " + describe({"x", x}) + "; a row needs at least one element");
  check_real(op, {"gamma", gamma});
  check_numel(op, {"gamma", gamma}, x.cols(), "one for each column of x");
}

void check_statistics(std::string_view op, const NamedTensor& statistics, const Tensor& x) {
  check_dtype(op, statistics, DType::kF32);
  check_numel(op, statistics, x.rows(), "one for each row of x");
}

MatrixView row_vector(const Tensor& tensor) { return tensor.reshaped(Shape{1, tensor.numel()}).view(); }
MatrixView column_vector(const Tensor& tensor) { return tensor.reshaped(Shape{tensor.numel(), 1}).view(); }

}  // namespace

NormOutputs norm_forward(Device& device, const NormInputs& inputs) {
  constexpr std::string_view kOp = "norm_forward";
  const bool centred = inputs.kind == NormKind::kLayerNorm;
  check_input(kOp, inputs.x, inputs.gamma);
  if (centred) {
    check_real(kOp, {"beta", inputs.beta});
    check_numel(kOp, {"beta", inputs.beta}, inputs.x.cols(), "one for each column of x");
  }
  check(!(inputs.epsilon < 0.0f), "norm_forward: epsilon must not be negative");

  const TensorSpec statistics{Shape{inputs.x.rows(), 1}, DType::kF32};
  NormOutputs out;
  out.y = device.allocate(inputs.x.spec(), inputs.y_holder);
  if (centred) out.mean = device.allocate(statistics, inputs.statistics_holder);
  out.rstd = device.allocate(statistics, inputs.statistics_holder);
  device.launch(&KernelTable::norm_forward, NormForwardArgs{.kind = inputs.kind,
                                                            .x = inputs.x.view(),
                                                            .gamma = row_vector(inputs.gamma),
                                                            .beta = centred ? row_vector(inputs.beta) : MatrixView{},
                                                            .y = out.y.view(),
                                                            .mean = centred ? out.mean.view() : MatrixView{},
                                                            .rstd = out.rstd.view(),
                                                            .epsilon = inputs.epsilon});
  return out;
}

NormGradients norm_backward(Device& device, const NormBackwardInputs& inputs) {
  constexpr std::string_view kOp = "norm_backward";
  const bool centred = inputs.kind == NormKind::kLayerNorm;
  check_input(kOp, inputs.x, inputs.gamma);
  check_real(kOp, {"grad_y", inputs.grad_y});
  check_same_shape(kOp, {"grad_y", inputs.grad_y}, {"x", inputs.x});
  if (centred) check_statistics(kOp, {"mean", inputs.mean}, inputs.x);
  check_statistics(kOp, {"rstd", inputs.rstd}, inputs.x);

  NormGradients out;
  out.x = device.allocate(inputs.x.spec(), inputs.grad_x_holder);
  out.gamma = device.allocate(inputs.gamma.spec(), inputs.grad_gamma_holder);
  if (centred) out.beta = device.allocate(inputs.gamma.spec(), inputs.grad_beta_holder);
  device.launch(&KernelTable::norm_backward,
                NormBackwardArgs{.kind = inputs.kind,
                                 .grad_y = inputs.grad_y.view(),
                                 .x = inputs.x.view(),
                                 .gamma = row_vector(inputs.gamma),
                                 .mean = centred ? column_vector(inputs.mean) : MatrixView{},
                                 .rstd = column_vector(inputs.rstd),
                                 .grad_x = out.x.view(),
                                 .grad_gamma = row_vector(out.gamma),
                                 .grad_beta = centred ? row_vector(out.beta) : MatrixView{}});
  return out;
}

}  // namespace fp8lab
