#include "backend/cpu/loops.h"

namespace fp8lab::cpu {

std::span<const Loops> available_loops() {
  static constexpr Loops kLoops[] = {{"baseline", kQuantizeLoopsBaseline, kMatmulLoopsBaseline}};
  return kLoops;
}

}  // namespace fp8lab::cpu
