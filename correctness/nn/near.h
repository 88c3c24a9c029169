#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/compare.h"

namespace fp8lab::nn_test {

inline double largest(const std::vector<double>& values) {
  double magnitude = 0.0;
  for (const double value : values) magnitude = std::max(magnitude, std::fabs(value));
  return magnitude;
}

/// True if every element is within `tolerance` of the expected one, relative to the largest.
inline ::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                       double tolerance) {
  return reference::all_close(actual, expected, {.atol = tolerance * largest(expected), .rtol = 0});
}

}  // namespace fp8lab::nn_test
