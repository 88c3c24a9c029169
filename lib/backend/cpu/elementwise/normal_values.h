#pragma once

#include <cstdint>

#include "core/counter_rng.h"

namespace fp8lab::cpu {

/// values[j] = rng.normal(first + j), the same bits. Draws many at a time, because four values share a Philox block and
/// two a logarithm, and in loops that compilers vectorise.
void normal_values(const CounterRng& rng, std::uint64_t first, std::int64_t count, float* values);

}  // namespace fp8lab::cpu
