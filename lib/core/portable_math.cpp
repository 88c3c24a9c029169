#include "core/portable_math.h"

#include <cmath>
#include <cstddef>
#include <limits>

// Only exact functions of <cmath> are used: floor, frexp, ldexp and the classifications.
namespace fp8lab::portable {
namespace {

// ln 2 and pi / 2 in parts. The leading parts have 32 or 33 bits, so their products with integers below 2^20 are exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kHalfPiHigh = 0x1.921fb544p+0;
constexpr double kHalfPiMiddle = 0x1.0b4611a6p-34;
constexpr double kHalfPiLow = 0x1.3198a2e037073p-69;

double nearest_integer(double x) { return std::floor(x + 0.5); }

// Coefficients of Taylor series, highest power first; the compiler rounds each division once.
constexpr double kSine[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                            1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
constexpr double kCosine[] = {-1.0 / 6402373705728000.0,
                              1.0 / 20922789888000.0,
                              -1.0 / 87178291200.0,
                              1.0 / 479001600.0,
                              -1.0 / 3628800.0,
                              1.0 / 40320.0,
                              -1.0 / 720.0,
                              1.0 / 24.0,
                              -1.0 / 2.0};
constexpr double kExponential[] = {
    1.0 / 87178291200.0, 1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
    1.0 / 362880.0,      1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,
    1.0 / 24.0,          1.0 / 6.0,          1.0 / 2.0};
constexpr double kArtanh[] = {1.0 / 23.0, 1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0,
                              1.0 / 11.0, 1.0 / 9.0,  1.0 / 7.0,  1.0 / 5.0,  1.0 / 3.0};

/// x * (...((c0 x + c1) x + c2)... ).
template <std::size_t kCount>
double polynomial(const double (&coefficients)[kCount], double x) {
  double sum = 0.0;
  for (const double coefficient : coefficients) sum = (sum + coefficient) * x;
  return sum;
}

}  // namespace

double exponential(double x) {
  if (std::isnan(x)) return x;
  if (x > 710.0) return std::numeric_limits<double>::infinity();
  if (x < -746.0) return 0.0;
  const double n = nearest_integer(x * 0x1.71547652b82fep+0);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // |r| <= ln(2) / 2: the first term left out is below 2^-60.
  return std::ldexp(1.0 + (r + r * polynomial(kExponential, r)), static_cast<int>(n));
}

double logarithm(double x) {
  if (std::isnan(x) || x < 0.0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  if (std::isinf(x)) return x;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) {  // below sqrt(1/2): scale m to [sqrt(1/2), sqrt(2))
    m *= 2.0;
    --exponent;
  }
  // ln(m) = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...); |s| < 0.172, so the first term left out is below 2^-60 of the
  // sum.
  const double s = (m - 1.0) / (m + 1.0);
  const double n = static_cast<double>(exponent);
  return n * kLn2High + (2.0 * (s + s * polynomial(kArtanh, s * s)) + n * kLn2Low);
}

double power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (double factor = base; exponent > 0; exponent /= 2, factor *= factor)
    if (exponent % 2 == 1) result *= factor;
  return result;
}

SineAndCosine sine_and_cosine(double angle) {
  if (!std::isfinite(angle))
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  const double n = nearest_integer(angle * 0x1.45f306dc9c883p-1);
  const double r = ((angle - n * kHalfPiHigh) - n * kHalfPiMiddle) - n * kHalfPiLow;
  // |r| <= pi / 4: the first terms left out are below 2^-57 of the sums.
  const double sine = r + r * polynomial(kSine, r * r), cosine = 1.0 + polynomial(kCosine, r * r);
  switch (static_cast<int>(n - 4.0 * std::floor(n / 4.0))) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

}  // namespace fp8lab::portable
