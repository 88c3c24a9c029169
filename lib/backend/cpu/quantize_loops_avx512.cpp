#include <immintrin.h>

#include "backend/cpu/quantize_loops_body.h"

// Compiled for AVX-512 (F, BW, DQ, VL); called only where the processor has them.
namespace fp8lab::cpu {
namespace {

// A whole cache line per store: half-line stores reach memory measurably slower.
void stream(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(from + i));
  _mm_sfence();
}

}  // namespace

const QuantizeLoops kQuantizeLoopsAvx512 = make_quantize_loops("avx512", stream);

}  // namespace fp8lab::cpu
