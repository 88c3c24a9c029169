#include <array>
#include <cstddef>

#include "backend/cpu/loops.h"

namespace fp8lab::cpu {
namespace {

constexpr std::array<Loops, 3> kBestFirst{Loops{"avx512", kQuantizeLoopsAvx512, kMatmulLoopsAvx512},
                                          Loops{"avx2", kQuantizeLoopsAvx2, kMatmulLoopsAvx2},
                                          Loops{"baseline", kQuantizeLoopsBaseline, kMatmulLoopsBaseline}};

/// Index of the best available set. A processor that has one set has all sets after it in the list.
std::size_t first_available() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 0;
  return __builtin_cpu_supports("avx2") ? 1 : 2;
}

}  // namespace

std::span<const Loops> available_loops() {
  static const std::size_t first = first_available();
  return std::span(kBestFirst).subspan(first);
}

}  // namespace fp8lab::cpu
