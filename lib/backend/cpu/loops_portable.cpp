#include "backend/cpu/loops.h"

namespace fp8lab::cpu {

std::span<const Loops> available_loops() {
  static constexpr Loops kLoops[] = {
      {InstructionSet::kBaseline, "baseline", kQuantizeLoopsBaseline, kMatmulLoopsBaseline}};
  return kLoops;
}

std::span<const MatmulLoops* const> other_matmul_loops() { return {}; }

}  // namespace fp8lab::cpu
