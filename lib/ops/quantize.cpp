#include "ops/quantize.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "core/float8_format.h"
#include "ops/prepared_cast.h"
#include "ops/scaling.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

/// Both sides of a block must divide this, so that kernels can cut matrices into tiles of full blocks.
constexpr std::int64_t kBlockMultiple = 128;

void check_inputs(const Quantizer& inputs) {
  check_format(inputs.format);
  check(inputs.orientations.rowwise || inputs.orientations.columnwise,
        "quantize: neither row-wise nor column-wise; at least one orientation must be asked for");
  if (inputs.format.amax_source == AmaxSource::kHistory) {
    check_tensor_wide("quantize", {"scale", inputs.scale});
  } else if (inputs.scale) {
    fail(fmt::format("quantize: {}; it is given only if the amax comes from a history",
                     describe({"scale", inputs.scale})));
  }
  if (inputs.amax) check_tensor_wide("quantize", {"amax", inputs.amax});
}

/// Measures the amax of tensors for which it is not known before the cast.
Tensor measure(Device& device, std::span<const Tensor> xs) {
  const Tensor amax = allocate_amax(device);
  bool fresh = true;
  for (const Tensor& x : xs) {
    device.launch(&KernelTable::amax, AmaxArgs{.in = x.view(), .amax = amax.data<float>(), .fresh = fresh});
    fresh = false;
  }
  return amax;
}

/// Inputs and outputs of a cast other than tensors: its scale, or the amax from which the scale follows, and the place
/// for the amax it records. All pointers are null under blocks.
struct CastContext {
  const float* scale = nullptr;
  const float* measured = nullptr;
  float* amax = nullptr;
  Tensor shared_scale_inv;  ///< shared by all orientations under a tensor-wide scale
};

PreparedCast prepare(Device& device, const MatrixView& x, const Shape& shape, const Quantizer& inputs,
                     const CastContext& context) {
  const QuantFormat& format = inputs.format;
  const auto orientation = [&](const OrientationLayout& layout) {
    QuantizedOrientation made;
    made.data = device.allocate(layout.data, inputs.holder);
    made.scale_inv =
        format.per_tensor() ? context.shared_scale_inv : device.allocate(layout.scales.spec, inputs.holder);
    return made;
  };
  PreparedCast prepared{.result = QuantizedTensor(shape, format), .args = {}};
  QuantizeArgs& args = prepared.args;
  args.in = x;
  args.format = format;
  args.scale = context.scale;
  args.measured = context.measured;
  args.amax = context.amax;
  if (inputs.orientations.rowwise) {
    prepared.result.rowwise() = orientation(rowwise_layout(format, x.rows, x.cols));
    args.rowwise = prepared.result.rowwise_operand();
  }
  if (inputs.orientations.columnwise) {
    prepared.result.columnwise() = orientation(columnwise_layout(format, x.rows, x.cols));
    args.columnwise = prepared.result.columnwise_operand(false);
  }
  return prepared;
}

QuantizedTensor cast_orientations(Device& device, const Tensor& x, const Quantizer& inputs,
                                  const CastContext& context) {
  PreparedCast prepared = prepare(device, x.view(), x.shape(), inputs, context);
  device.launch(&KernelTable::quantize, prepared.args);
  if (device.cast_watch() != nullptr) device.cast_watch()->saw_cast(device, x, prepared.result);
  return std::move(prepared.result);
}

/// Calls use(context) with the context in which all of `xs` are cast, under one scale. `measured` as in quantize().
template <class Use>
void with_shared_scale(Device& device, std::span<const Tensor> xs, const Quantizer& inputs, Tensor measured,
                       const Use& use) {
  if (inputs.format.amax_source == AmaxSource::kTensor) {
    if (!measured) measured = measure(device, xs);
    max_over(inputs.amax_group, measured);
  }
  use(CastContext{.scale = measured ? nullptr : inputs.scale.data<const float>(),
                  .measured = measured ? measured.data<const float>() : nullptr,
                  .amax = inputs.amax ? inputs.amax.data<float>() : nullptr,
                  .shared_scale_inv = device.allocate({Shape{1}, DType::kF32}, inputs.holder)});
}

}  // namespace

void check_format(const QuantFormat& format) {
  if (!is_float8(format.dtype))
    fail(fmt::format("quantize: to {}; quantized data are e4m3 or e5m2", name(format.dtype)));
  if (format.per_tensor() != (format.amax_source != AmaxSource::kBlock))
    fail(fmt::format("quantize: blocks of {} x {}; a block's scale comes from its own amax, a tensor's from elsewhere",
                     format.block_rows, format.block_cols));
  if (format.per_tensor()) {
    if (format.scale_dtype() != DType::kF32) fail("quantize: an e8m0 scale for a full tensor; only blocks have those");
    return;
  }
  const auto divides = [](std::int64_t side) { return side >= 1 && kBlockMultiple % side == 0; };
  if (!divides(format.block_rows) || !divides(format.block_cols))
    fail(fmt::format("quantize: blocks of {} x {}; both sides must divide {}", format.block_rows, format.block_cols,
                     kBlockMultiple));
}

float* amax_place(std::string_view op, const Tensor& amax) {
  if (!amax) return nullptr;
  check_tensor_wide(op, {"amax", amax});
  return amax.data<float>();
}

void max_over(ProcessGroup* group, const Tensor& amaxes) {
  if (group == nullptr) return;
  const ReducePart part{
      .data = amaxes.view().data, .elems = amaxes.numel(), .dtype = DType::kF32, .content = Content::kScales};
  group->all_reduce(ReduceOp::kMax, std::span(&part, 1), "amax");
}

bool casts_unstored(const Quantizer& inputs) {
  if (inputs.format.per_tensor()) return inputs.format.amax_source == AmaxSource::kHistory;
  return inputs.format.block_rows == 1 && !inputs.orientations.columnwise && !inputs.amax;
}

PreparedCast prepare_unstored_cast(Device& device, std::string_view op, const TensorSpec& spec,
                                   const Quantizer& inputs) {
  check_inputs(inputs);
  if (!casts_unstored(inputs))
    fail(fmt::format(
        "{}: the cast must be of a full tensor under a given scale, or row-wise in blocks of one row without an amax; "
        "store the result and quantize it",
        op));
  if (device.cast_watch() != nullptr) device.cast_watch()->missed_cast();
  const Shape& shape = spec.shape;
  const MatrixView x{.data = nullptr,
                     .dtype = spec.dtype,
                     .rows = shape.rows(),
                     .cols = shape.cols(),
                     .row_stride = shape.cols(),
                     .col_stride = 1};
  if (!inputs.format.per_tensor()) return prepare(device, x, shape, inputs, {});
  return prepare(device, x, shape, inputs,
                 {.scale = inputs.scale.data<const float>(),
                  .amax = inputs.amax ? inputs.amax.data<float>() : nullptr,
                  .shared_scale_inv = device.allocate({Shape{1}, DType::kF32}, inputs.holder)});
}

Tensor allocate_amax(Device& device) {
  return device.allocate({Shape{1}, DType::kF32}, device.holder(HolderKind::kWorkspace, "quantize", "amax"));
}

QuantizedTensor quantize(Device& device, const Tensor& x, const Quantizer& inputs, const Tensor& measured) {
  check_real("quantize", {"x", x});
  check_inputs(inputs);
  if (measured) {
    check_tensor_wide("quantize", {"measured", measured});
    if (inputs.format.amax_source != AmaxSource::kTensor)
      fail(fmt::format("quantize: {}; it is given only if the scale follows from the tensor's own amax",
                       describe({"measured", measured})));
  }
  QuantizedTensor result;
  if (inputs.format.per_tensor()) {
    with_shared_scale(device, std::span(&x, 1), inputs, measured,
                      [&](const CastContext& context) { result = cast_orientations(device, x, inputs, context); });
    return result;
  }
  // Blocks are measured one by one inside the cast; the amax of the entire tensor is computed only if the caller needs
  // it.
  if (inputs.amax) device.launch(&KernelTable::amax, AmaxArgs{.in = x.view(), .amax = inputs.amax.data<float>()});
  return cast_orientations(device, x, inputs, {});
}

std::vector<QuantizedTensor> quantize_together(Device& device, std::span<const Tensor> xs, const Quantizer& inputs) {
  for (const Tensor& x : xs) check_real("quantize_together", {"x", x});
  check_inputs(inputs);
  if (!inputs.format.per_tensor())
    fail("quantize_together: blocks have scales of their own; only full tensors can share one");
  std::vector<QuantizedTensor> results;
  results.reserve(xs.size());
  with_shared_scale(device, xs, inputs, {}, [&](const CastContext& context) {
    for (const Tensor& x : xs) results.push_back(cast_orientations(device, x, inputs, context));
  });
  return results;
}

Tensor dequantize(Device& device, const OperandView& operand, DType dtype, HolderId holder) {
  if (!operand.quantized() || !is_float8(operand.values.dtype))
    fail(fmt::format("dequantize: {} {}; it must be e4m3 or e5m2 with scales", name(operand.values.dtype),
                     operand.quantized() ? "with scales" : "without scales"));
  if (!is_real(dtype)) fail(fmt::format("dequantize: to {}; it must be f32, f16 or bf16", name(dtype)));
  const Tensor out = device.allocate({Shape{operand.values.rows, operand.values.cols}, dtype}, holder);
  device.launch(&KernelTable::dequantize, DequantizeArgs{.in = operand, .out = out.view()});
  return out;
}

}  // namespace fp8lab
