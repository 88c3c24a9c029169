#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/quantize/quantize_source.h"
#include "core/float8.h"

// Amaxes are compared as the bits of magnitudes: for those, integer order is float order, and NaN stays above all.
namespace fp8lab::cpu {

void amax(const AmaxArgs& args, ExecContext&) {
  const std::uint32_t before = args.fresh ? 0 : float_bits(*args.amax) & kFloatMagnitudeMask;
  *args.amax = float_from_bits(std::max(before, amax_magnitude(args.in)));
}

void delayed_update(const DelayedUpdateArgs& args, ExecContext&) {
  for (std::int64_t tensor = 0; tensor < args.tensors; ++tensor) {
    const auto slot = [&](std::int64_t row) -> float& { return args.history[row * args.tensors + tensor]; };
    const float last = slot(0);
    if (last == 0.0f) continue;
    float amax = last;
    if (args.algorithm == AmaxAlgorithm::kMax) {
      amax = 0.0f;
      for (std::int64_t row = 0; row < args.length; ++row)
        if (slot(row) > amax) amax = slot(row);  // false for NaN
    }
    for (std::int64_t row = 1; row + 1 < args.length; ++row) slot(row) = slot(row + 1);
    slot(args.length - 1) = last;
    slot(0) = 0.0f;
    if (amax > 0.0f && amax <= kFloatMax) {
      const float fp8_max = std::ldexp(args.fp8_max[static_cast<std::size_t>(tensor)], -args.margin);
      args.scale[tensor] = fp8lab::scale_from_amax(amax, fp8_max, 0.0f, false);
    }
  }
}

}  // namespace fp8lab::cpu
