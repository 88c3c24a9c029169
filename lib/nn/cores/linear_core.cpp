#include "nn/cores/linear_core.h"

#include <fmt/core.h>

#include <utility>

#include "autograd/activation_checkpoint.h"
#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/quantized_storage.h"
#include "ops/rewrite.h"

namespace fp8lab {
namespace {

/// The roles of a core: `first`, and `last` if the core casts that result.
std::vector<QuantFormat> roles(std::vector<QuantFormat> first, bool casts, const QuantFormat& last) {
  if (casts) first.push_back(last);
  return first;
}

}  // namespace

LinearCore::LinearCore(Build& build, const std::string& name, const LinearShape& shape)
    : name_(name),
      recipe_(build.recipe),
      casts_output_(shape.casts_output),
      casts_input_gradient_(shape.casts_input_gradient),
      grouped_(shape.grouped),
      fused_quantize_(build.fused_quantize),
      cache_weights_(build.cache_weights),
      hooks_(make_linear_hooks(build.runtime.behaviors)),
      forward_scales_(
          build, name + " forward",
          roles({build.recipe.activation, build.recipe.weight}, shape.casts_output, build.recipe.activation),
          build.recipe.delayed, true),
      backward_scales_(build, name + " backward",
                       roles({build.recipe.gradient}, shape.casts_input_gradient, build.recipe.gradient),
                       build.recipe.delayed, false),
      weight_(make_weight(build, name + ".weight", {shape.matrices * shape.out, shape.in},
                          quantizer(build.runtime, forward_scales_, kWeight),
                          shape.to_residual ? build.residual_deviation : build.init_deviation, shape.part)),
      bias_(shape.bias ? make_parameter(build, name + ".bias", {shape.matrices * shape.out}, Init::kZeros, shape.part)
                       : nullptr) {}

Quantizer LinearCore::quantizer(Runtime& runtime, const RoleScales& scales, int role) const {
  if (!recipe_.quantized) return {};
  const char* const what = &scales == &backward_scales_ ? "gradient" : role == kInput ? "input" : "weight";
  Quantizer quantizer = scales.quantizer(role, {}, runtime.device.holder(HolderKind::kWorkspace, name_, what));
  quantizer.orientations.columnwise =
      runtime.differentiates() && !reads_rowwise_transposed(runtime.device.arch(), quantizer.format);
  return quantizer;
}

bool LinearCore::casts_at_once(const Runtime& runtime) const {
  const CastWatch* const watch = runtime.device.cast_watch();
  return fused_quantize_ && (watch == nullptr || !watch->needs_stored());
}

bool LinearCore::measures(const QuantFormat& format) const {
  return recipe_.quantized && fused_quantize_ && format.amax_source == AmaxSource::kTensor;
}

bool LinearCore::measures_gradient() const { return measures(recipe_.gradient); }

Operand LinearCore::quantize_role(Runtime& runtime, const RoleScales& scales, int role, Operand stored) const {
  if (!recipe_.quantized) return stored;
  return {.quantized = quantize(runtime.device, stored.plain, quantizer(runtime, scales, role), stored.amax)};
}

bool LinearCore::quantizes_again() const {
  const bool sharded = weight_->local != nullptr;
  return sharded && recipe_.quantized && !weight_->in_eight_bits() && !hooks_->saves_sharded_copy();
}

const QuantizedTensor& LinearCore::cached_weight(Runtime& runtime, const Quantizer& cast) {
  Device& device = runtime.device;
  const QuantFormat& format = cast.format;
  // Validation caches only the row-wise orientation, and training needs both.
  if (cast.orientations.columnwise && !cached_.columnwise() && hooks_->drops_incomplete_copy(format)) cached_.clear();
  if (cached_.empty()) {
    Quantizer first = cast;
    first.holder = device.holder(HolderKind::kRecipeState, name_, "cached weight");
    cached_ = quantize(device, weight_->value, first);
  } else if (runtime.first_micro_batch || !hooks_->skips_cast(device.arch(), format, grouped_)) {
    const Rewrite rewrite{.value = weight_->value, .to = &cached_, .quantizer = &cast};
    quantize_in_place(device, {&rewrite, 1});
    if (device.cast_watch() != nullptr) device.cast_watch()->saw_cast(device, weight_->value, cached_);
  }
  if (!cast.orientations.columnwise || cached_.columnwise()) return cached_;
  if (!format.columnwise_is_transpose())
    fail(fmt::format("{}: backward needs the column-wise orientation of its weight, and the cached copy has none",
                     name_));
  cached_.columnwise() =
      make_columnwise(device, cached_, device.holder(HolderKind::kRecipeState, name_, "cached weight"));
  return cached_;
}

OperandView LinearCore::weight_rowwise(Runtime& runtime, bool for_backward, bool caches,
                                       std::optional<QuantizedTensor>& copy) {
  if (weight_->in_eight_bits()) {
    hooks_->before_forward_reads(runtime, *weight_, name_);
    return weight_->quantized.rowwise_operand();
  }
  if (!recipe_.quantized) return weight_->value.operand();
  Quantizer cast = quantizer(runtime, forward_scales_, kWeight);
  if (!for_backward) cast.orientations.columnwise = false;
  // A sharded weight is gathered again by every pass, so its copies live for one pass (TransformerEngine#2805).
  if (caches && cache_weights_ && weight_->local == nullptr) return cached_weight(runtime, cast).rowwise_operand();
  copy = quantize(runtime.device, weight_->value, cast);
  return copy->rowwise_operand();
}

OperandView LinearCore::weight_columnwise(Runtime& runtime, Restored& saved, std::size_t entry,
                                          std::optional<QuantizedTensor>& copy) {
  const ArchProfile& arch = runtime.device.arch();
  const Tensor& scale = saved.tensor(entry);
  if (saved.has(entry) && !scale) return columnwise_of(saved, entry, arch);
  if (weight_->in_eight_bits()) {
    need_columnwise(runtime.device, *weight_, name_);
    return columnwise_of(weight_->quantized, arch);
  }
  if (!recipe_.quantized) return columnwise_of(weight_->value);
  if (!cached_.empty()) return columnwise_of(cached_, arch);
  // Backward must repeat forward's cast. The history has advanced since, so the scale is forward's saved one,
  // and no amax is recorded: it would count for the next step.
  Quantizer again = quantizer(runtime, forward_scales_, kWeight);
  again.scale = scale;
  again.amax = {};
  copy = quantize(runtime.device, weight_->value, again);
  return columnwise_of(*copy, arch);
}

void LinearCore::resize_histories(Runtime& runtime) {
  backward_scales_.resize_histories(runtime.device);
  if (!forward_scales_.resize_histories(runtime.device)) return;
  for (const Parameter* weight : {weight_.get(), weight_->local})
    if (weight != nullptr && weight->in_eight_bits())
      hooks_->after_history_resize(*weight->quantizer, forward_scales_.delayed()->amax(kWeight));
}

OperandRequest LinearCore::begin_forward(Runtime& runtime) {
  resize_histories(runtime);
  forward_scales_.begin_forward(runtime);
  if (!recipe_.quantized || !fused_quantize_) return {};
  Quantizer cast = quantizer(runtime, forward_scales_, kInput);
  if (casts_at_once(runtime) && casts_unstored(cast)) return {.cast = std::move(cast)};
  return {.measure = measures(cast.format)};
}

LinearCore::Forward LinearCore::forward(Runtime& runtime, Operand x, bool keeps_copy) {
  Forward result;
  const bool quantized_again = !keeps_copy && quantizes_again();
  result.x = x.is_quantized() ? std::move(x) : quantize_role(runtime, forward_scales_, kInput, std::move(x));
  KeptResult kept(runtime, KeptResult::Of::kProduct);
  // A copy for only this product is not made again with a result that the region kept.
  const OperandView weight = kept.found() && quantized_again
                                 ? OperandView()
                                 : weight_rowwise(runtime, !quantized_again, !keeps_copy, result.weight.copy);
  const GemmInputs product{.a = result.x.rowwise(),
                           .b = weight,
                           .bias = bias_ ? &bias_->value : nullptr,
                           .out_dtype = weight_->spec.dtype,
                           .holder = runtime.in_flight(name_),
                           .fast_accumulation = true};
  if (kept.found())
    result.y = kept.take(product.holder);
  else if (casts_output_)
    result.quantized_y = cast_product(runtime, product, forward_scales_, kOutput);
  else
    result.y = output(runtime.device, product);
  if (result.y) kept.keep(result.y);
  if (quantized_again) {
    result.weight.copy.reset();
    result.weight.scale = forward_scales_.copy_scale(runtime.device, kWeight, runtime.workspace(name_));
  }
  forward_scales_.end_forward();
  if (result.x.is_quantized()) keep_for_backward(result.x.quantized);
  return result;
}

QuantizedTensor LinearCore::cast_product(Runtime& runtime, GemmInputs product, const RoleScales& scales,
                                         int role) const {
  const Quantizer cast = scales.quantizer(role, {}, runtime.in_flight(name_));
  if (casts_at_once(runtime)) return gemm_quantize(runtime.device, product, cast);
  product.out_dtype = DType::kF32;
  product.holder = runtime.workspace(name_);
  return quantize(runtime.device, gemm(runtime.device, product), cast);
}

Tensor LinearCore::bias_gradient(Device& device, const Tensor& grad_y) const {
  return column_sum(device, grad_y, bias_->spec.dtype, bias_->grad_holder);
}

void LinearCore::accumulate_bias(Runtime& runtime, const Tensor& grad_y) {
  if (bias_) bias_->accumulate(runtime.device, bias_gradient(runtime.device, grad_y));
}

QuantizedTensor LinearCore::cast_rows(Runtime& runtime, const RoleScales& scales, int role, const Tensor& x) const {
  Quantizer cast = quantizer(runtime, scales, role);
  cast.orientations = {.rowwise = true, .columnwise = false};
  return quantize(runtime.device, x, cast);
}

QuantizedTensor LinearCore::cast_input(Runtime& runtime, const Tensor& x) const {
  return cast_rows(runtime, forward_scales_, kInput, x);
}

QuantizedTensor LinearCore::cast_gradient(Runtime& runtime, const Tensor& grad_y) const {
  return cast_rows(runtime, backward_scales_, kGradOutput, grad_y);
}

Operand LinearCore::received_input(Runtime& runtime, QuantizedTensor rows) const {
  return received(runtime, std::move(rows), "input by columns");
}

Operand LinearCore::received_gradient(Runtime& runtime, QuantizedTensor rows) const {
  return received(runtime, std::move(rows), "gradient by columns");
}

Operand LinearCore::received(Runtime& runtime, QuantizedTensor rows, const char* what) const {
  Device& device = runtime.device;
  const QuantFormat format = rows.format();
  if (!runtime.differentiates()) return {.quantized = std::move(rows)};
  if (format.columnwise_is_transpose()) {
    complete(runtime, rows);
  } else {
    const Tensor values = dequantize(device, rows.rowwise_operand(), weight_->spec.dtype, runtime.workspace(name_));
    rows.columnwise() = quantize(device, values,
                                 {.format = format,
                                  .orientations = {.rowwise = false, .columnwise = true},
                                  .holder = device.holder(HolderKind::kWorkspace, name_, what)})
                            .columnwise();
  }
  return {.quantized = std::move(rows)};
}

void LinearCore::complete(Runtime& runtime, QuantizedTensor& operand) const {
  if (operand.columnwise() || reads_rowwise_transposed(runtime.device.arch(), operand.format())) return;
  operand.columnwise() = make_columnwise(runtime.device, operand, runtime.workspace(name_));
}

Gradient LinearCore::backward(Runtime& runtime, Operand grad_y, Restored& saved, std::size_t x, std::size_t weight,
                              bool x_came_quantized) {
  Device& device = runtime.device;
  const DType dtype = weight_->spec.dtype;
  const bool came_quantized = grad_y.is_quantized();
  if (!came_quantized)
    accumulate_bias(runtime, grad_y.plain);
  else if (bias_)
    accumulate_bias(runtime, dequantize(device, grad_y.rowwise(), dtype, runtime.workspace(name_)));
  Operand grad =
      came_quantized ? std::move(grad_y) : quantize_role(runtime, backward_scales_, kGradOutput, std::move(grad_y));
  std::optional<QuantizedTensor> copy;
  const GemmInputs product{.a = grad.rowwise(),
                           .b = weight_columnwise(runtime, saved, weight, copy),
                           .out_dtype = dtype,
                           .holder = runtime.in_flight(name_)};
  Gradient grad_x;
  if (casts_input_gradient_)
    grad_x.quantized = cast_product(runtime, product, backward_scales_, kGradInput);
  else
    grad_x.plain = input_gradient(device, product);
  copy.reset();
  hooks_->after_backward_reads(*weight_);
  if (x_came_quantized) hooks_->before_return(runtime, grad_x, dtype);
  if (came_quantized) complete(runtime, grad.quantized);
  if (saved.has(x) && !saved.tensor(x)) complete(runtime, saved.quantized(x));
  weight_->accumulate(device, weight_gradient(device, {.a = grad.columnwise(device.arch()),
                                                       .b = columnwise_of(saved, x, device.arch()),
                                                       .out_dtype = weight_->spec.dtype,
                                                       .holder = weight_->grad_holder}));
  return grad_x;
}

}  // namespace fp8lab
