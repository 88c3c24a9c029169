#include "harness/measure/cast_check.h"

#include <fmt/core.h>

#include <cmath>

#include "harness/reference/casts.h"
#include "ops/quantize.h"

namespace fp8lab {
namespace {

using reference_step::BlockCast;
using reference_step::Matrix;
using reference_step::ScaleRule;

BlockCast definition_of(const QuantFormat& format) {
  BlockCast cast{.format = format.dtype == DType::kE4M3 ? reference_step::kE4M3 : reference_step::kE5M2,
                 .block_rows = format.block_rows,
                 .block_cols = format.block_cols,
                 .epsilon = static_cast<double>(format.epsilon)};
  switch (format.scale) {
    case ScaleKind::kF32: cast.scale = ScaleRule::kFloat; break;
    case ScaleKind::kF32PowerOfTwo: cast.scale = ScaleRule::kPowerOfTwo; break;
    case ScaleKind::kE8M0Rceil: cast.scale = ScaleRule::kExponentUp; break;
    case ScaleKind::kE8M0Floor: cast.scale = ScaleRule::kExponentDown; break;
  }
  return cast;
}

/// "" if all values are equal except for the rounding of a code times its inverse scale to FP32.
std::string difference(const Matrix& expected, const std::vector<float>& seen) {
  constexpr double kRounding = 0x1p-22;
  std::size_t count = 0, worst = 0;
  double largest = 0.0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double e = expected.values[i], distance = std::abs(static_cast<double>(seen[i]) - e);
    if (distance <= kRounding * std::abs(e)) continue;
    ++count;
    if (!(distance <= largest)) largest = distance, worst = i;
  }
  if (count == 0) return {};
  return fmt::format("{} of {} values, one is {:.7g} instead of {:.7g}", count, seen.size(),
                     static_cast<double>(seen[worst]), expected.values[worst]);
}

}  // namespace

void CastCheck::saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) {
  if (made.format().amax_source == AmaxSource::kHistory) return;
  const BlockCast cast = definition_of(made.format());
  const HolderId holder = device.holder(HolderKind::kWorkspace, "cast check");
  const Matrix source(x.rows(), x.cols(), device.read(x));
  const auto check = [&](const Matrix& from, const OperandView& operand, const char* orientation) {
    ++casts_;
    const std::string what =
        difference(through(from, cast), device.read(dequantize(device, operand, DType::kF32, holder)));
    if (!what.empty()) wrong_.push_back({source, fmt::format("{}: {}", orientation, what)});
  };
  if (made.rowwise()) check(source, made.rowwise_operand(), "row-wise");
  // The column-wise orientation is the same format applied to the transposed matrix.
  if (made.columnwise()) check(transposed(source), made.columnwise_operand(false), "column-wise");
}

}  // namespace fp8lab
