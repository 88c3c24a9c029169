#include "ops/norm.h"

#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "ops/prepared_cast.h"
#include "ops/scaling.h"
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
void check_forward(std::string_view op, const NormInputs& inputs) {
  check_input(op, inputs.x, inputs.gamma);
  if (inputs.kind == NormKind::kLayerNorm && inputs.beta) {
    check_real(op, {"beta", inputs.beta});
    check_numel(op, {"beta", inputs.beta}, inputs.x.cols(), "one for each column of x");
  }
  if (inputs.epsilon < 0.0f) fail(std::string(op) + ": epsilon must not be negative");
}

struct Statistics {
  Tensor mean;  ///< LayerNorm only
  Tensor rstd;
};

Statistics allocate_statistics(Device& device, const NormInputs& inputs) {
  const TensorSpec spec{Shape{inputs.x.rows(), 1}, DType::kF32};
  Statistics statistics;
  if (inputs.kind == NormKind::kLayerNorm) statistics.mean = device.allocate(spec, inputs.statistics_holder);
  statistics.rstd = device.allocate(spec, inputs.statistics_holder);
  return statistics;
}

NormForwardArgs forward_args(const NormInputs& inputs, const MatrixView& y, const Statistics& statistics) {
  const bool centred = inputs.kind == NormKind::kLayerNorm;
  return {.kind = inputs.kind,
          .x = inputs.x.view(),
          .gamma = row_vector(inputs.gamma),
          .beta = centred && inputs.beta ? row_vector(inputs.beta) : MatrixView{},
          .y = y,
          .mean = centred ? statistics.mean.view() : MatrixView{},
          .rstd = statistics.rstd.view(),
          .epsilon = inputs.epsilon};
}

}  // namespace

NormOutputs norm_forward(Device& device, const NormInputs& inputs) {
  check_forward("norm_forward", inputs);
  float* const amax = amax_place("norm_forward", inputs.amax);
  NormOutputs out;
  out.y = device.allocate(inputs.x.spec(), inputs.y_holder);
  const Statistics statistics = allocate_statistics(device, inputs);
  NormForwardArgs args = forward_args(inputs, out.y.view(), statistics);
  args.amax = amax;
  device.launch(&KernelTable::norm_forward, args);
  out.mean = statistics.mean;
  out.rstd = statistics.rstd;
  return out;
}

NormQuantizedOutputs norm_quantize(Device& device, const NormInputs& inputs, const Quantizer& quantizer) {
  check_forward("norm_quantize", inputs);
  PreparedCast cast = prepare_unstored_cast(device, "norm_quantize", inputs.x.spec(), quantizer);
  const Statistics statistics = allocate_statistics(device, inputs);
  device.launch(&KernelTable::norm_quantize,
                NormQuantizeArgs{.norm = forward_args(inputs, cast.args.in, statistics), .cast = cast.args});
  return {.y = std::move(cast.result), .mean = statistics.mean, .rstd = statistics.rstd};
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
  if (centred && inputs.has_beta) out.beta = device.allocate(inputs.gamma.spec(), inputs.grad_beta_holder);
  device.launch(&KernelTable::norm_backward,
                NormBackwardArgs{.kind = inputs.kind,
                                 .grad_y = inputs.grad_y.view(),
                                 .x = inputs.x.view(),
                                 .gamma = row_vector(inputs.gamma),
                                 .mean = centred ? inputs.mean.as_column() : MatrixView{},
                                 .rstd = inputs.rstd.as_column(),
                                 .grad_x = out.x.view(),
                                 .grad_gamma = row_vector(out.gamma),
                                 .grad_beta = out.beta ? row_vector(out.beta) : MatrixView{}});
  return out;
}

}  // namespace fp8lab
