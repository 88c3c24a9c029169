#include "ops/gemm.h"

#include <fmt/core.h>

#include <string>

#include "core/check.h"
#include "core/float8_format.h"
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

[[noreturn]] void refuse(const GemmInputs& inputs, std::string_view rule) {
  fail(fmt::format("gemm: a is {}, b is {}; {}", describe_operand(inputs.a), describe_operand(inputs.b), rule));
}

/// Microscaled operands may lie in either order on every card: one multiplies them so, the other reads them as values.
bool readable_along_columns(const OperandView& operand) {
  return operand.values.col_stride == 1 || operand.values.cols <= 1 || operand.scales.dtype == DType::kE8M0;
}

void check_types(const GemmInputs& inputs) {
  const auto supported = [](const OperandView& operand) {
    return operand.quantized() ? is_float8(operand.values.dtype) : is_real(operand.values.dtype);
  };
  if (!supported(inputs.a) || !supported(inputs.b))
    refuse(inputs, "operands are f32, f16 or bf16, or e4m3 or e5m2 with scales");
  if (!is_real(inputs.out_dtype))
    fail(fmt::format("gemm: the result is to be {}; it must be f32, f16 or bf16", name(inputs.out_dtype)));
}

// What no matrix unit can do, refused everywhere so that a schedule that runs here runs on a card.
void check_scaling(const GemmInputs& inputs, const ArchProfile& arch) {
  const OperandView& a = inputs.a;
  const OperandView& b = inputs.b;
  if (a.quantized() != b.quantized()) refuse(inputs, "both operands must be quantized, or neither");
  if (!a.quantized()) return;
  if (a.values.dtype == DType::kE5M2 && b.values.dtype == DType::kE5M2)
    refuse(inputs, "at most one operand may be e5m2");
  if (a.scales.block_cols != b.scales.block_cols || a.scales.dtype != b.scales.dtype)
    refuse(inputs, "both must be scaled alike along the reduction axis");
  if (!arch.fp8_gemm_any_orientation && (!readable_along_columns(a) || !readable_along_columns(b)))
    refuse(inputs,
           fmt::format("'{}' reads quantized operands along the reduction axis only, so the column-wise half is "
                       "needed instead of a transposed view",
                       arch.name));
}

}  // namespace

Tensor gemm(Device& device, const GemmInputs& inputs) {
  check_types(inputs);
  if (inputs.a.values.cols != inputs.b.values.cols)
    refuse(inputs, "the product [m, n] is over the columns of a [m, k] and b [n, k]");
  check_scaling(inputs, device.arch());
  const std::int64_t m = inputs.a.values.rows;
  const std::int64_t n = inputs.b.values.rows;
  if (inputs.bias != nullptr) {
    const NamedTensor bias{"bias", *inputs.bias};
    check_real("gemm", bias);
    check_numel("gemm", bias, n, "one for each row of b");
  }

  const Tensor out = device.allocate({Shape{m, n}, inputs.out_dtype}, inputs.holder);
  const MatrixView bias = inputs.bias == nullptr ? MatrixView{} : inputs.bias->reshaped(Shape{1, n}).view();
  device.launch(&KernelTable::gemm, GemmArgs{.a = inputs.a,
                                             .b = inputs.b,
                                             .out = out.view(),
                                             .bias = bias,
                                             .fast_accumulation = inputs.fast_accumulation});
  return out;
}

}  // namespace fp8lab
