#include "nn/linear_core.h"

#include <utility>

#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace fp8lab {
namespace {

enum ForwardRole { kInput, kWeight };
enum BackwardRole { kGradOutput };

}  // namespace

LinearCore::LinearCore(Build& build, const std::string& name, const LinearShape& shape)
    : name_(name),
      recipe_(build.recipe),
      weight_(make_parameter(build, name + ".weight", {shape.out, shape.in}, Init::kNormal)),
      bias_(shape.bias ? make_parameter(build, name + ".bias", {shape.out}, Init::kZeros) : nullptr),
      forward_scales_(build, name + " forward", {build.recipe.activation, build.recipe.weight}, build.recipe.delayed, true),
      backward_scales_(build, name + " backward", {build.recipe.gradient}, build.recipe.delayed, false) {}

Operand LinearCore::quantize_role(Runtime& runtime, const RoleScales& scales, int role, const Tensor& value) {
  if (!recipe_.quantized) return {.plain = value, .quantized = {}};
  QuantizeInputs inputs = scales.inputs(role, {}, runtime.workspace(name_));
  inputs.orientations.columnwise = !reads_rowwise_transposed(runtime.device.arch(), inputs.format);
  return {.plain = {}, .quantized = quantize(runtime.device, value, inputs)};
}

LinearCore::Forward LinearCore::forward(Runtime& runtime, const Tensor& x) {
  forward_scales_.begin_forward(runtime);
  Forward result;
  result.x = quantize_role(runtime, forward_scales_, kInput, x);
  result.weight = quantize_role(runtime, forward_scales_, kWeight, weight_->value);
  result.y = gemm(runtime.device, {.a = result.x.rowwise(),
                                   .b = result.weight.rowwise(),
                                   .bias = bias_ ? &bias_->value : nullptr,
                                   .out_dtype = x.dtype(),
                                   .holder = runtime.in_flight(name_)});
  forward_scales_.end_forward();
  if (result.x.is_quantized()) keep_for_backward(result.x.quantized);
  return result;
}

Tensor LinearCore::backward(Runtime& runtime, Tensor grad_y, const OperandView& x, const OperandView& weight) {
  Device& device = runtime.device;
  const DType dtype = grad_y.dtype();
  if (bias_) bias_->accumulate(device, column_sum(device, grad_y, dtype, bias_->grad_holder));
  const Operand grad = quantize_role(runtime, backward_scales_, kGradOutput, grad_y);
  if (grad.is_quantized()) grad_y = {};
  Tensor grad_x = gemm(device, {.a = grad.rowwise(), .b = weight, .out_dtype = dtype, .holder = runtime.in_flight(name_)});
  weight_->accumulate(device, gemm(device, {.a = grad.columnwise(device.arch()),
                                            .b = x,
                                            .out_dtype = weight_->value.dtype(),
                                            .holder = weight_->grad_holder}));
  return grad_x;
}

}  // namespace fp8lab
