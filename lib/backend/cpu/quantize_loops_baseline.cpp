#include <cstring>

#include "backend/cpu/quantize_loops_body.h"

// What the compiler makes of the loops for the architecture's baseline (SSE2 on x86-64).
namespace fp8lab::cpu {
namespace {

void copy(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

const QuantizeLoops kQuantizeLoopsBaseline = make_quantize_loops("baseline", copy);

}  // namespace fp8lab::cpu
