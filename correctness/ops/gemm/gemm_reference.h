#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/gemm/gemm_operands.h"
#include "reference/dense_reference.h"
#include "reference/expected.h"
#include "reference/float8_sums.h"

/// Products in double precision, with the error that each element may have.
namespace fp8lab::gemm_test {

using reference::Expected;
using reference::kUnit;
using reference::MatrixUnit;

/// `unit`: the matrix unit that sums the products of quantized data if that is not FP32.
inline Expected product(const Operand& a, const Operand& b, const Values& bias, DType out,
                        const MatrixUnit* unit = nullptr) {
  Expected expected = reference::product(a.rows, b.rows, a.cols, a.values, b.values, bias);
  std::vector<double> terms(static_cast<std::size_t>(a.cols));
  for (std::int64_t i = 0; i < a.rows && unit; ++i)
    for (std::int64_t j = 0; j < b.rows; ++j) {
      for (std::int64_t l = 0; l < a.cols; ++l) terms[static_cast<std::size_t>(l)] = a.at(i, l) * b.at(j, l);
      expected.error[static_cast<std::size_t>(i * b.rows + j)] += reference::error_on(*unit, terms);
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
