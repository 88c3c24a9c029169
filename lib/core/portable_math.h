#pragma once

#include <cstdint>

// Elementary functions in double made of only correctly rounded operations, so that every machine computes the same
// bits: libm's results differ between versions, and between processors with and without FMA. For the host only; kernels
// use core/elementary.h for functions of single elements.
namespace fp8lab::portable {

/// e^x, within 3 ulp if the result is normal; 0 below -746, Inf above 710, NaN for NaN.
double exponential(double x);

/// ln(x), within 3 ulp; -Inf for 0, Inf for Inf, NaN below 0 and for NaN.
double logarithm(double x);

/// base^exponent for exponent >= 0, within `exponent` ulp; exact for exponents 0 and 1.
double power(double base, std::int64_t exponent);

struct SineAndCosine {
  double sine;
  double cosine;
};
/// For an angle in radians, each within 2^-52 for |angle| < 2^20; beyond that only repeatable. NaN for NaN and Inf.
SineAndCosine sine_and_cosine(double angle);

}  // namespace fp8lab::portable
