#include <immintrin.h>

#include "backend/cpu/quantize/quantize_loops_body.h"

// Compiled for AVX-512 (F, BW, DQ, VL); called only if the processor has them.
namespace fp8lab::cpu {
namespace {

struct Avx512Line {
  static void write_past_caches(const std::uint8_t* from, std::uint8_t* to) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_load_si512(from));
  }
};

}  // namespace

const QuantizeLoops kQuantizeLoopsAvx512 = make_quantize_loops<Avx512Line>();

}  // namespace fp8lab::cpu
