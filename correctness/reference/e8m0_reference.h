#pragma once

#include "reference/step_function.h"

namespace fp8lab::reference {

// E8M0 block scales by their definitions in exact arithmetic. Byte b means 2^(b - 127); Inf and NaN give 255.

/// The smallest byte with amax <= fp8_max * 2^(byte - 127).
int e8m0_rceil(double amax, double fp8_max);
/// The largest byte with 2^(byte - 127) * 2^emax <= amax, or 0 if there is none.
int e8m0_floor(double amax, int emax);

/// The same rule as steps over all non-negative floats.
StepFunction e8m0_rceil_steps(double fp8_max);
StepFunction e8m0_floor_steps(int emax);

}  // namespace fp8lab::reference
