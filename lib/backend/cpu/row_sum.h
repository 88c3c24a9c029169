#pragma once

#include <algorithm>
#include <cstdint>

#include "core/sum_order.h"

namespace fp8lab::cpu {

/// Sum of term(0) ... term(count - 1) in the order of core/sum_order.h, in `Real`.
template <class Real = float, class Term>
Real row_sum(std::int64_t count, const Term& term) {
  alignas(64) Real sums[kSumLanes];
  const std::int64_t first = std::min<std::int64_t>(count, kSumLanes);
  for (std::int64_t j = 0; j < first; ++j) sums[j] = Real{0} + term(j);
  std::int64_t j = kSumLanes;
  for (; j + kSumLanes <= count; j += kSumLanes)
    for (std::int64_t lane = 0; lane < kSumLanes; ++lane) sums[lane] += term(j + lane);
  for (std::int64_t lane = 0; lane < count - j; ++lane) sums[lane] += term(j + lane);

  // Runs without terms are left out: they would add zeros.
  std::int64_t runs = (first + kSumRun - 1) / kSumRun;
  std::fill(sums + first, sums + runs * kSumRun, Real{0});
  for (std::int64_t run = 0; run < runs; ++run) {
    const Real* s = sums + run * kSumRun;
    sums[run] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
  if (runs == 0) return Real{0};
  for (; runs > 1; runs = (runs + 1) / 2) {
    for (std::int64_t run = 0; run < runs / 2; ++run) sums[run] = sums[2 * run] + sums[2 * run + 1];
    if (runs % 2 != 0) sums[runs / 2] = sums[runs - 1];
  }
  return sums[0];
}

}  // namespace fp8lab::cpu
