#include "reference/expected.h"

#include <cmath>
#include <sstream>

namespace fp8lab::reference {
namespace {

bool within(double actual, const Expected& expected, std::size_t i) {
  return std::fabs(actual - expected.value[i]) <= 1.01 * expected.error[i];
}

}  // namespace

double rounding_error(DType dtype, double x) {
  switch (dtype) {
    case DType::kF32: return 0x1p-24 * std::fabs(x) + 0x1p-150;
    case DType::kF16: return 0x1p-11 * std::fabs(x) + 0x1p-25;
    case DType::kBF16: return 0x1p-8 * std::fabs(x) + 0x1p-134;
    default: return std::nan("");  // NaN, so that no value passes
  }
}

Expected rounded_to(DType dtype, Expected expected) {
  for (std::size_t i = 0; i < expected.value.size(); ++i) expected.error[i] += rounding_error(dtype, expected.value[i]);
  return expected;
}

::testing::AssertionResult all_within(const std::vector<double>& actual, const Expected& expected) {
  if (actual.size() != expected.value.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.value.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (within(actual[i], expected, i)) continue;
    std::ostringstream text;
    text.precision(9);
    text << "[" << i << "] is " << actual[i] << ", expected " << expected.value[i] << " +- " << expected.error[i];
    return ::testing::AssertionFailure() << text.str();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult refuses_mutations(const Expected& expected) {
  const std::size_t size = expected.value.size();
  const auto refuses = [&](const char* what, const auto& mutate) -> ::testing::AssertionResult {
    for (std::size_t i = 0; i < size; ++i)
      if (!within(mutate(i), expected, i)) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "the bounds let pass: " << what;
  };
  if (auto zeros = refuses("zeros", [](std::size_t) { return 0.0; }); !zeros) return zeros;
  if (auto large = refuses("1.01 times the value", [&](std::size_t i) { return 1.01 * expected.value[i]; }); !large)
    return large;
  if (size < 2) return ::testing::AssertionSuccess();
  return refuses("the neighbour's values", [&](std::size_t i) { return expected.value[(i + 1) % size]; });
}

}  // namespace fp8lab::reference
