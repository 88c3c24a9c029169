#include "backend/cpu/gemm/matmul_loops_body.h"

// Compiled for AVX-512 (F, BW, DQ, VL); called only if the processor has them.
namespace fp8lab::cpu {
namespace {

struct Groups {
  using GroupVector = float __attribute__((vector_size(32)));
  static constexpr std::int64_t kGroups = 4;
};
struct Avx512 : Groups {
  using Vector = float __attribute__((vector_size(64)));
  static constexpr std::int64_t kRows = 6, kVectors = 4;
};
struct Avx512Short : Groups {
  using Vector = float __attribute__((vector_size(32)));
  static constexpr std::int64_t kRows = 12, kVectors = 2;
};

}  // namespace

const MatmulLoops kMatmulLoopsAvx512 = make_matmul_loops<Avx512>();
const MatmulLoops kMatmulLoopsAvx512Short = make_matmul_loops<Avx512Short>();

}  // namespace fp8lab::cpu
