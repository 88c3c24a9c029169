#include <immintrin.h>

#include "backend/cpu/quantize_loops_body.h"

// Compiled for AVX2; called only where the processor has it.
namespace fp8lab::cpu {
namespace {

void stream(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i)));
  _mm_sfence();
}

}  // namespace

const QuantizeLoops kQuantizeLoopsAvx2 = make_quantize_loops("avx2", stream);

}  // namespace fp8lab::cpu
