#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>

#include "reference/bytes.h"

/// Comparisons for every test. Containers are anything that std::span can view (vectors, arrays, spans). If values are
/// compared the elements must be arithmetic, so storage types are converted first. A NaN on one side only, or different
/// lengths, never pass.
namespace fp8lab::reference {

struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

/// |actual - expected| <= atol + rtol * |expected|. Infinities match only themselves, a NaN matches only a NaN.
inline bool is_close(double actual, double expected, Tolerance tolerance) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) && std::isnan(expected);
  if (std::isinf(actual) || std::isinf(expected)) return actual == expected;
  return std::fabs(actual - expected) <= tolerance.atol + tolerance.rtol * std::fabs(expected);
}

namespace detail {

template <class Actual, class Expected>
::testing::AssertionResult same_size(const Actual& actual, const Expected& expected) {
  if (actual.size() == expected.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
}

template <class T>
std::string raw_bytes(const T& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  std::ostringstream text;
  text << std::hex << std::setfill('0') << "0x";
  for (std::size_t i = sizeof(T); i-- > 0;) text << std::setw(2) << static_cast<unsigned>(bytes[i]);  // little endian
  return text.str();
}

}  // namespace detail

/// True if every element is_close(); otherwise reports how many are not, the first, and the one with the largest error.
template <class Actual, class Expected>
::testing::AssertionResult all_close(const Actual& actual_range, const Expected& expected_range, Tolerance tolerance) {
  const std::span actual(actual_range);
  const std::span expected(expected_range);
  if (auto sizes = detail::same_size(actual, expected); !sizes) return sizes;
  std::size_t wrong = 0;
  std::size_t first = 0;
  std::size_t worst = 0;
  double worst_difference = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]);
    const double e = static_cast<double>(expected[i]);
    if (is_close(a, e, tolerance)) continue;
    if (wrong++ == 0) first = i;
    double difference = std::fabs(a - e);
    if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
    if (difference > worst_difference) {
      worst_difference = difference;
      worst = i;
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  const auto describe = [&](std::size_t i) {
    std::ostringstream text;
    text << std::setprecision(9) << "[" << i << "] is " << static_cast<double>(actual[i]) << ", expected "
         << static_cast<double>(expected[i]);
    return text.str();
  };
  return ::testing::AssertionFailure() << wrong << " of " << actual.size() << " elements differ by more than "
                                       << tolerance.atol << " + " << tolerance.rtol << " * |expected|; first "
                                       << describe(first) << "; worst " << describe(worst);
}

/// True if bytes are equal, so that -0 differs from 0 and NaN payloads count; otherwise reports how many elements
/// differ and the first.
template <class Actual, class Expected>
::testing::AssertionResult bitwise_equal(const Actual& actual_range, const Expected& expected_range) {
  const std::span actual(actual_range);
  const std::span expected(expected_range);
  using Element = typename decltype(actual)::value_type;
  static_assert(std::is_same_v<Element, typename decltype(expected)::value_type>);
  static_assert(std::is_trivially_copyable_v<Element>);
  if (auto sizes = detail::same_size(actual, expected); !sizes) return sizes;
  if (same_bytes(std::as_bytes(actual), std::as_bytes(expected))) return ::testing::AssertionSuccess();
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (std::memcmp(&actual[i], &expected[i], sizeof(Element)) != 0 && wrong++ == 0) first = i;
  return ::testing::AssertionFailure() << wrong << " of " << actual.size() << " elements differ; first [" << first
                                       << "] is " << detail::raw_bytes(actual[first]) << ", expected "
                                       << detail::raw_bytes(expected[first]);
}

/// Signal to quantization noise, 20 log10(|reference| / |reference - actual|): +inf if they are equal, NaN if a value
/// is not finite or the lengths differ. Gates bound it from both sides: too good means that nothing was quantized.
template <class Reference, class Actual>
double sqnr_db(const Reference& reference_range, const Actual& actual_range) {
  const std::span reference(reference_range);
  const std::span actual(actual_range);
  if (reference.size() != actual.size()) return std::numeric_limits<double>::quiet_NaN();
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double r = static_cast<double>(reference[i]);
    const double difference = r - static_cast<double>(actual[i]);
    signal += r * r;
    noise += difference * difference;
  }
  if (!std::isfinite(signal) || !std::isfinite(noise)) return std::numeric_limits<double>::quiet_NaN();
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

}  // namespace fp8lab::reference
