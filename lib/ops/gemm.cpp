#include "ops/gemm.h"

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/float8_format.h"
#include "ops/prepared_cast.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

std::string describe_operand(const OperandView& operand) {
  const MatrixView& values = operand.values;
  const ScaleView& scales = operand.scales;
  std::string text = fmt::format("{} [{}, {}]", name(values.dtype), values.rows, values.cols);
  if (!operand.quantized()) return text;
  if (scales.per_tensor()) return text + " scaled per tensor";
  return text + fmt::format(" scaled by {} x {} {}", scales.block_rows, scales.block_cols, name(scales.dtype));
}

[[noreturn]] void refuse(std::string_view op, const GemmInputs& inputs, std::string_view rule) {
  fail(fmt::format("{}: a is {}, b is {}; {}", op, describe_operand(inputs.a), describe_operand(inputs.b), rule));
}

/// True if the operand may be read along its columns. Microscaled operands may be stored in either order on every GPU:
/// one generation multiplies them so, the other dequantizes them first.
bool readable_along_columns(const OperandView& operand) {
  return operand.values.col_stride == 1 || operand.values.cols <= 1 || operand.scales.dtype == DType::kE8M0;
}

void check_types(std::string_view op, const GemmInputs& inputs) {
  const auto supported = [](const OperandView& operand) {
    return operand.quantized() ? is_float8(operand.values.dtype) : is_real(operand.values.dtype);
  };
  if (!supported(inputs.a) || !supported(inputs.b))
    refuse(op, inputs, "operands are f32, f16 or bf16, or e4m3 or e5m2 with scales");
}

// Refuses on every device what no matrix unit can do, so that a schedule that runs here also runs on a GPU.
void check_scaling(std::string_view op, const GemmInputs& inputs, const ArchProfile& arch) {
  const OperandView& a = inputs.a;
  const OperandView& b = inputs.b;
  if (a.quantized() != b.quantized()) refuse(op, inputs, "both operands must be quantized, or neither");
  if (!a.quantized()) return;
  if (a.values.dtype == DType::kE5M2 && b.values.dtype == DType::kE5M2)
    refuse(op, inputs, "at most one operand may be e5m2");
  if (a.scales.block_cols != b.scales.block_cols || a.scales.dtype != b.scales.dtype)
    refuse(op, inputs, "both must be scaled alike along the reduction axis");
  if (!arch.fp8_gemm_any_orientation && (!readable_along_columns(a) || !readable_along_columns(b)))
    refuse(op, inputs,
           fmt::format("'{}' reads quantized operands along the reduction axis only, so the column-wise orientation is "
                       "needed instead of a transposed view",
                       arch.name));
}

/// Checks everything except the result's destination.
void check_product(std::string_view op, const GemmInputs& inputs, const ArchProfile& arch) {
  check_types(op, inputs);
  if (inputs.a.values.cols != inputs.b.values.cols)
    refuse(op, inputs, "the product [m, n] is over the columns of a [m, k] and b [n, k]");
  check_scaling(op, inputs, arch);
  if (inputs.bias == nullptr) return;
  const NamedTensor bias{"bias", *inputs.bias};
  check_real(op, bias);
  check_numel(op, bias, inputs.b.values.rows, "one for each row of b");
}

GemmArgs product_args(const GemmInputs& inputs, const MatrixView& out) {
  return {.a = inputs.a,
          .b = inputs.b,
          .out = out,
          .bias = inputs.bias == nullptr ? MatrixView{} : inputs.bias->reshaped(Shape{1, out.cols}).view(),
          .fast_accumulation = inputs.fast_accumulation};
}

Shape result_shape(const GemmInputs& inputs) { return {inputs.a.values.rows, inputs.b.values.rows}; }

}  // namespace

Tensor gemm(Device& device, const GemmInputs& inputs) {
  check_product("gemm", inputs, device.arch());
  if (!is_real(inputs.out_dtype))
    fail(fmt::format("gemm: the result is to be {}; it must be f32, f16 or bf16", name(inputs.out_dtype)));
  const Tensor out = device.allocate({result_shape(inputs), inputs.out_dtype}, inputs.holder);
  device.launch(&KernelTable::gemm, product_args(inputs, out.view()));
  return out;
}

void gemm_into(Device& device, const GemmInputs& inputs, const Tensor& out) {
  check_product("gemm_into", inputs, device.arch());
  check_real("gemm_into", {"out", out});
  if (out.shape() != result_shape(inputs))
    fail(fmt::format("gemm_into: out is {}; the product is {}", to_string(out.shape()),
                     to_string(result_shape(inputs))));
  device.launch(&KernelTable::gemm, product_args(inputs, out.view()));
}

QuantizedTensor gemm_quantize(Device& device, const GemmInputs& inputs, const Quantizer& quantizer) {
  constexpr std::string_view kOp = "gemm_quantize";
  check_product(kOp, inputs, device.arch());
  PreparedCast cast = prepare_unstored_cast(device, kOp, {result_shape(inputs), DType::kF32}, quantizer);
  device.launch(&KernelTable::gemm_quantize,
                GemmQuantizeArgs{.product = product_args(inputs, cast.args.in), .cast = cast.args});
  return std::move(cast.result);
}

}  // namespace fp8lab
