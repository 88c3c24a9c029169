#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// Sum of term(0) ... term(count - 1) in FP32 over 16 interleaved partial sums, joined pairwise: the same order on
/// every vector width, and count / 16 + 4 roundings at most on the way of any term.
template <class Term>
float row_sum(std::int64_t count, const Term& term) {
  constexpr int kPartial = 16;
  float sums[kPartial] = {};
  const std::int64_t whole = count - count % kPartial;
  for (std::int64_t j = 0; j < whole; j += kPartial)
    for (int lane = 0; lane < kPartial; ++lane) sums[lane] += term(j + lane);
  for (std::int64_t j = whole; j < count; ++j) sums[j - whole] += term(j);
  for (int width = kPartial / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

}  // namespace fp8lab::cpu
