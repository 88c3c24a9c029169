#include "reference/float8_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace fp8lab::reference {
namespace {

std::uint32_t bits_of_exact_float(double x) {
  const float narrowed = static_cast<float>(x);
  if (static_cast<double>(narrowed) != x) throw std::logic_error("a midpoint is not a float");
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrowed, sizeof bits);
  return bits;
}

double finite_value(const SmallFloatLayout& layout, std::uint32_t magnitude) {
  const int bias = (1 << (layout.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> layout.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1u << layout.mantissa_bits) - 1));
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - layout.mantissa_bits);
  return std::ldexp((1 << layout.mantissa_bits) + mantissa, exponent - bias - layout.mantissa_bits);
}

}  // namespace

SmallFloat::SmallFloat(SmallFloatLayout layout) : layout_(layout) {
  const std::uint32_t all_ones = sign_mask() - 1;
  const std::uint32_t infinity = all_ones - ((1u << layout.mantissa_bits) - 1);
  max_code_ = layout.specials == Specials::kIeee ? infinity - 1 : all_ones - 1;
  const std::uint32_t last = layout.conversion == Conversion::kIeee ? max_code_ + 1 : max_code_;
  for (std::uint32_t code = 0; code <= last; ++code) values_.push_back(finite_value(layout, code));
}

std::uint32_t SmallFloat::nan_code(bool negative) const {
  if (layout_.conversion == Conversion::kSatFinite) return sign_mask() - 1;
  const std::uint32_t quiet = (max_code_ + 1) | (1u << (layout_.mantissa_bits - 1));
  return negative ? quiet | sign_mask() : quiet;
}

double SmallFloat::decode(std::uint32_t code) const {
  const std::uint32_t magnitude = code & (sign_mask() - 1);
  const double sign = (code & sign_mask()) != 0 ? -1.0 : 1.0;
  if (magnitude <= max_code_) return sign * values_[magnitude];
  const bool infinite = layout_.specials == Specials::kIeee && magnitude == max_code_ + 1;
  return sign * (infinite ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN());
}

std::uint32_t SmallFloat::encode(double x) const {
  if (std::isnan(x)) return nan_code(std::signbit(x));
  const double magnitude = std::fabs(x);
  const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
  std::uint32_t code = static_cast<std::uint32_t>(above - values_.begin());
  if (above == values_.end()) {
    code = static_cast<std::uint32_t>(values_.size()) - 1;
  } else if (*above != magnitude) {
    const double midpoint = (values_[code - 1] + values_[code]) / 2;  // exact: neighbours share their last bits
    if (magnitude < midpoint || (magnitude == midpoint && code % 2 == 1)) --code;
  }
  return std::signbit(x) ? code | sign_mask() : code;
}

StepFunction SmallFloat::steps(bool negative) const {
  const std::uint32_t sign = negative ? sign_mask() : 0;
  StepFunction steps;
  for (std::uint32_t code = 0; code + 1 < values_.size(); ++code) {
    const std::uint32_t midpoint = bits_of_exact_float((values_[code] + values_[code + 1]) / 2);
    steps.push_back({code % 2 == 0 ? midpoint : midpoint - 1, code | sign});
  }
  steps.push_back({0x7F800000u, static_cast<std::uint32_t>(values_.size() - 1) | sign});
  steps.push_back({0x7FFFFFFFu, nan_code(negative)});
  return steps;
}

}  // namespace fp8lab::reference
