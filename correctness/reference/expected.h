#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <sstream>
#include <vector>

#include "core/dtype.h"

/// Expected values, each with an error bound derived where the value is computed.
namespace fp8lab::reference {

/// Unit roundoff of FP32: the largest relative error of one operation.
inline constexpr double kUnit = 0x1p-24;

struct Expected {
  std::vector<double> value;
  std::vector<double> error;

  explicit Expected(std::size_t size = 0) : value(size), error(size) {}
};

/// What rounding `x` to `dtype` once can change: half an ulp, and half the smallest subnormal.
inline double rounding_error(DType dtype, double x) {
  switch (dtype) {
    case DType::kF32: return 0x1p-24 * std::fabs(x) + 0x1p-150;
    case DType::kF16: return 0x1p-11 * std::fabs(x) + 0x1p-25;
    case DType::kBF16: return 0x1p-8 * std::fabs(x) + 0x1p-134;
    default: return std::nan("");  // NaN, so that no value passes
  }
}

/// Adds the error of the last rounding, to the output's type, to every bound.
inline Expected rounded_to(DType dtype, Expected expected) {
  for (std::size_t i = 0; i < expected.value.size(); ++i) expected.error[i] += rounding_error(dtype, expected.value[i]);
  return expected;
}

/// True if |actual - expected| <= error for every element; NaN never passes. Bounds are first order in kUnit, hence the
/// 1%.
inline ::testing::AssertionResult all_within(const std::vector<double>& actual, const Expected& expected) {
  if (actual.size() != expected.value.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.value.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::fabs(actual[i] - expected.value[i]) <= 1.01 * expected.error[i]) continue;
    std::ostringstream text;
    text.precision(9);
    text << "[" << i << "] is " << actual[i] << ", expected " << expected.value[i] << " +- " << expected.error[i];
    return ::testing::AssertionFailure() << text.str();
  }
  return ::testing::AssertionSuccess();
}

/// True if the bounds refuse zeros, values one percent too large, and values shifted by one place.
inline ::testing::AssertionResult refuses_mutations(const Expected& expected) {
  const std::size_t size = expected.value.size();
  const auto refuses = [&](const char* what, auto&& mutate) -> ::testing::AssertionResult {
    std::vector<double> mutated(size);
    for (std::size_t i = 0; i < size; ++i) mutated[i] = mutate(i);
    if (all_within(mutated, expected)) return ::testing::AssertionFailure() << "the bounds let pass: " << what;
    return ::testing::AssertionSuccess();
  };
  if (auto zeros = refuses("zeros", [](std::size_t) { return 0.0; }); !zeros) return zeros;
  if (auto large = refuses("1.01 times the value", [&](std::size_t i) { return 1.01 * expected.value[i]; }); !large)
    return large;
  if (size < 2) return ::testing::AssertionSuccess();
  return refuses("the neighbour's values", [&](std::size_t i) { return expected.value[(i + 1) % size]; });
}

}  // namespace fp8lab::reference
