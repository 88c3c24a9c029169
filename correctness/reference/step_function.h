#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fp8lab::reference {

/// `value` holds for every magnitude after the previous step's last one, up to and including `last_bits`.
struct Step {
  std::uint32_t last_bits;
  std::uint32_t value;
};

/// A function of all 2^31 float magnitudes (sign bit clear, Inf and NaN included) that changes at few places, as
/// rounding does: ascending steps, the last one ending at 0x7FFFFFFF.
using StepFunction = std::vector<Step>;

struct BitRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0x7FFFFFFF;
};

struct Mismatches {
  std::uint64_t count = 0;
  std::uint32_t first_bits = 0xFFFFFFFF;
};

/// Evaluates `candidate(bits)` at every magnitude of `range` and counts the differences from `expected`.
template <class Candidate>
Mismatches find_mismatches(const StepFunction& expected, BitRange range, Candidate candidate) {
  Mismatches found;
  std::uint32_t first = range.first;
  for (const Step& step : expected) {
    if (step.last_bits < first) continue;
    const std::uint32_t end = std::min(step.last_bits, range.last) + 1;
    // The inner loop only counts, so that it vectorises; most steps have no mismatch to locate.
    std::uint32_t wrong = 0;
    for (std::uint32_t bits = first; bits < end; ++bits) wrong += candidate(bits) != step.value ? 1u : 0u;
    if (wrong != 0 && found.count == 0) {
      found.first_bits = first;
      while (candidate(found.first_bits) == step.value) ++found.first_bits;
    }
    found.count += wrong;
    if (step.last_bits >= range.last) break;
    first = end;
  }
  return found;
}

}  // namespace fp8lab::reference
