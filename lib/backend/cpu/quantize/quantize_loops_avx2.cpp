#include <immintrin.h>

#include "backend/cpu/quantize/quantize_loops_body.h"

// Compiled for AVX2; called only if the processor has it.
namespace fp8lab::cpu {
namespace {

struct Avx2Line {
  static void write_past_caches(const std::uint8_t* from, std::uint8_t* to) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(target, _mm256_load_si256(source));
    _mm256_stream_si256(target + 1, _mm256_load_si256(source + 1));
  }
};

}  // namespace

const QuantizeLoops kQuantizeLoopsAvx2 = make_quantize_loops<Avx2Line>();

}  // namespace fp8lab::cpu
