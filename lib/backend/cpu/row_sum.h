#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/sum_order.h"

namespace fp8lab::cpu {
namespace detail {

/// Adds up each run of kSumRun partial sums: sums[r] becomes the sum of run r.
template <class Real>
void join_runs(Real* sums, std::int64_t first, std::int64_t runs) {
  for (std::int64_t run = first; run < runs; ++run) {
    const Real* s = sums + run * kSumRun;
    sums[run] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
}
/// sums[i] becomes sums[2 i] + sums[2 i + 1].
template <class Real>
void join_neighbours(Real* sums, std::int64_t first, std::int64_t pairs) {
  for (std::int64_t pair = first; pair < pairs; ++pair) sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
}

// The same for floats, four results at once: compilers do not find the shuffles by themselves.
using Four = float __attribute__((vector_size(16)));

inline Four four_at(const float* from) {
  Four values;
  std::memcpy(&values, from, sizeof values);
  return values;
}
inline void join_runs(float* sums, std::int64_t runs) {
  const std::int64_t full = runs / 4 * 4;
  for (std::int64_t run = 0; run < full; run += 4) {
    const float* s = sums + run * kSumRun;
    const Four a = four_at(s) + four_at(s + 4), b = four_at(s + 8) + four_at(s + 12);
    const Four c = four_at(s + 16) + four_at(s + 20), d = four_at(s + 24) + four_at(s + 28);
    const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const Four even =
        __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5) + __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    const Four odd =
        __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7) + __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
    const Four joined = even + odd;
    std::memcpy(sums + run, &joined, sizeof joined);
  }
  join_runs(sums, full, runs);
}
inline void join_neighbours(float* sums, std::int64_t pairs) {
  const std::int64_t full = pairs / 4 * 4;
  for (std::int64_t pair = 0; pair < full; pair += 4) {
    const Four low = four_at(sums + 2 * pair), high = four_at(sums + 2 * pair + 4);
    const Four joined = __builtin_shufflevector(low, high, 0, 2, 4, 6) + __builtin_shufflevector(low, high, 1, 3, 5, 7);
    std::memcpy(sums + pair, &joined, sizeof joined);
  }
  join_neighbours(sums, full, pairs);
}
inline void join_runs(double* sums, std::int64_t runs) { join_runs(sums, 0, runs); }
inline void join_neighbours(double* sums, std::int64_t pairs) { join_neighbours(sums, 0, pairs); }

}  // namespace detail

/// Sum of term(0) ... term(count - 1) in the order of core/sum_order.h, in `Real`: float or double.
template <class Real = float, class Term>
Real row_sum(std::int64_t count, const Term& term) {
  alignas(64) Real sums[kSumLanes];
  const std::int64_t first = std::min<std::int64_t>(count, kSumLanes);
  for (std::int64_t j = 0; j < first; ++j) sums[j] = Real{0} + term(j);
  std::int64_t j = kSumLanes;
  for (; j + kSumLanes <= count; j += kSumLanes)
    for (std::int64_t lane = 0; lane < kSumLanes; ++lane) sums[lane] += term(j + lane);
  for (std::int64_t lane = 0; lane < count - j; ++lane) sums[lane] += term(j + lane);

  // Runs without terms are left out: they would only add zeros.
  std::int64_t runs = (first + kSumRun - 1) / kSumRun;
  if (runs == 0) return Real{0};
  std::fill(sums + first, sums + runs * kSumRun, Real{0});
  detail::join_runs(sums, runs);
  for (; runs > 1; runs = (runs + 1) / 2) {
    const Real last = sums[runs - 1];
    detail::join_neighbours(sums, runs / 2);
    if (runs % 2 != 0) sums[runs / 2] = last;
  }
  return sums[0];
}

}  // namespace fp8lab::cpu
