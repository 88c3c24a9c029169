#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "core/dtype.h"

/// Expected values, each with an error bound that the code which computes the value derives.
namespace fp8lab::reference {

/// Unit roundoff of FP32: the largest relative error of one operation.
inline constexpr double kUnit = 0x1p-24;

struct Expected {
  std::vector<double> value;
  std::vector<double> error;

  explicit Expected(std::size_t size = 0) : value(size), error(size) {}
};

/// What rounding `x` to `dtype` once can change: half an ulp, and half the smallest subnormal.
double rounding_error(DType dtype, double x);

/// Adds the error of the last rounding, to the output's type, to every bound.
Expected rounded_to(DType dtype, Expected expected);

/// True if |actual - expected| <= error for every element; NaN never passes. Bounds are first order in kUnit, hence the
/// 1%.
::testing::AssertionResult all_within(const std::vector<double>& actual, const Expected& expected);

/// True if the bounds refuse zeros, values one percent too large, and values shifted by one place.
::testing::AssertionResult refuses_mutations(const Expected& expected);

}  // namespace fp8lab::reference
