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

/// The number of bits from `first` up to `end`, at which `candidate` has another value than `step`.
template <class Candidate>
std::uint32_t count_wrong(const Step& step, std::uint32_t first, std::uint32_t end, const Candidate& candidate) {
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = first; bits < end; ++bits) wrong += candidate(bits) != step.value ? 1u : 0u;
  return wrong;
}
#if defined(__x86_64__)
template <class Candidate>
__attribute__((target("avx2"), flatten)) std::uint32_t count_wrong_by_avx2(const Step& step, std::uint32_t first,
                                                                           std::uint32_t end, Candidate candidate) {
  return count_wrong(step, first, end, candidate);
}
#endif

/// Evaluates `candidate(bits)` at every magnitude of `range` and counts the differences from `expected`.
template <class Candidate>
Mismatches find_mismatches(const StepFunction& expected, BitRange range, Candidate candidate) {
  Mismatches found;
  std::uint32_t first = range.first;
  for (const Step& step : expected) {
    if (step.last_bits < first) continue;
    const std::uint32_t end = std::min(step.last_bits, range.last) + 1;
    // The inner loop only counts, so that it vectorises; most steps have no mismatch to locate.
#if defined(__x86_64__)
    const std::uint32_t wrong = __builtin_cpu_supports("avx2") ? count_wrong_by_avx2(step, first, end, candidate)
                                                               : count_wrong(step, first, end, candidate);
#else
    const std::uint32_t wrong = count_wrong(step, first, end, candidate);
#endif
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
