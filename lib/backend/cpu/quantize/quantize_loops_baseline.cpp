#include <cstring>

#include "backend/cpu/quantize/quantize_loops_body.h"

// Compiled for the architecture's baseline (SSE2 on x86-64).
namespace fp8lab::cpu {
namespace {

struct PlainLine {
  static void write_past_caches(const std::uint8_t* from, std::uint8_t* to) { std::memcpy(to, from, kLine); }
};

}  // namespace

const QuantizeLoops kQuantizeLoopsBaseline = make_quantize_loops<PlainLine>();

}  // namespace fp8lab::cpu
