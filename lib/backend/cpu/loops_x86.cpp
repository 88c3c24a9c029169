#include <array>
#include <cstddef>

#include "backend/cpu/loops.h"

namespace fp8lab::cpu {
namespace {

/// Zen 4, the AVX-512 processor of AMD's family 19h, executes vectors of 512 bits in two parts and broadcasts them at
/// half the speed.
bool splits_vectors() { return __builtin_cpu_is("amdfam19h"); }

/// Index of the best available set. A processor that has one set has all sets after it in the list.
std::size_t first_available() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 2;
}

}  // namespace

std::span<const Loops> available_loops() {
  static const std::array<Loops, 3> best_first{
      Loops{InstructionSet::kAvx512, "avx512", kQuantizeLoopsAvx512,
            splits_vectors() ? kMatmulLoopsAvx512Short : kMatmulLoopsAvx512},
      Loops{InstructionSet::kAvx2, "avx2", kQuantizeLoopsAvx2, kMatmulLoopsAvx2},
      Loops{InstructionSet::kBaseline, "baseline", kQuantizeLoopsBaseline, kMatmulLoopsBaseline}};
  static const std::size_t first = first_available();
  return std::span(best_first).subspan(first);
}

std::span<const MatmulLoops* const> other_matmul_loops() {
  static const MatmulLoops* const other = splits_vectors() ? &kMatmulLoopsAvx512 : &kMatmulLoopsAvx512Short;
  return std::span(&other, first_available() == 0 ? 1 : 0);
}

}  // namespace fp8lab::cpu
