#pragma once

#include <cstdint>

// Elementary functions in double from correctly rounded operations alone, so that every machine computes the same bits:
// libm's differ between versions, and between processors with and without FMA. Hosts alone call them; what kernels
// compute by element is in core/elementary.h.
namespace fp8lab::portable {

/// e^x, within 3 ulp where the result is normal; 0 below -746, Inf above 710, NaN for NaN.
double exponential(double x);

/// ln(x), within 3 ulp; -Inf for 0, Inf for Inf, NaN below 0 and for NaN.
double logarithm(double x);

/// base^exponent for exponent >= 0, within `exponent` ulp; exact for exponents 0 and 1.
double power(double base, std::int64_t exponent);

struct SineAndCosine {
  double sine;
  double cosine;
};
/// Of an angle in radians, each within 2^-52 for |angle| < 2^20; beyond, no more than repeatable. NaN for NaN and Inf.
SineAndCosine sine_and_cosine(double angle);

}  // namespace fp8lab::portable
