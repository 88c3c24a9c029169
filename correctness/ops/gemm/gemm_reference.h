#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/gemm/gemm_operands.h"
#include "reference/expected.h"
#include "reference/float8_sums.h"

/// Products in double precision, with the error that each element may have.
namespace fp8lab::gemm_test {

using reference::Expected;
using reference::kUnit;
using reference::MatrixUnit;

/// In any order of k products and sums a term passes through at most k roundings. One more for each dequantized
/// operand, or two for the scales of the finished sum; one for the bias and one for accumulation. `unit`: the matrix
/// unit that sums the products of quantized data if that is not FP32.
inline Expected product(const Operand& a, const Operand& b, const Values& bias, DType out,
                        const MatrixUnit* unit = nullptr) {
  Expected expected(static_cast<std::size_t>(a.rows * b.rows));
  std::vector<double> terms(static_cast<std::size_t>(a.cols));
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.rows; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * b.rows + j);
      double sum = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(j)];
      double magnitude = std::fabs(sum);
      for (std::int64_t l = 0; l < a.cols; ++l) {
        const double term = a.at(i, l) * b.at(j, l);
        terms[static_cast<std::size_t>(l)] = term;
        sum += term;
        magnitude += std::fabs(term);
      }
      expected.value[at] = sum;
      expected.error[at] =
          static_cast<double>(a.cols + 4) * kUnit * magnitude + (unit ? reference::error_on(*unit, terms) : 0.0);
    }
  return rounded_to(out, std::move(expected));
}

/// The matrix units if they sum the products of quantized data: on a GPU, if rows of quantized data are multiples of 16
/// bytes; otherwise null.
inline const MatrixUnit* summed_by(Device& device, const Operand& a, const Operand& b, bool fast = false) {
  static constexpr MatrixUnit kUnits, kFastUnits{.promoted_every = reference::kNeverPromoted};
  const bool data = a.view.quantized() && a.view.scales.dtype == DType::kF32;
  if (device.name() == "cpu" || !data || a.cols % 16 != 0 || b.rows % 16 != 0) return nullptr;
  return fast ? &kFastUnits : &kUnits;
}

}  // namespace fp8lab::gemm_test
