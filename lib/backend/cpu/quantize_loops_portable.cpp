#include <array>

#include "backend/cpu/quantize_loops.h"

namespace fp8lab::cpu {

std::span<const QuantizeLoops* const> quantize_loops() {
  static constexpr std::array kLoops = {&kQuantizeLoopsBaseline};
  return kLoops;
}

}  // namespace fp8lab::cpu
