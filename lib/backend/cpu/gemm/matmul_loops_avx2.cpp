#include "backend/cpu/gemm/matmul_loops_body.h"

// Compiled for AVX2; called only if the processor has it.
namespace fp8lab::cpu {
namespace {

struct Avx2 {
  using Vector = float __attribute__((vector_size(32)));
  using GroupVector = Vector;
  static constexpr std::int64_t kGroups = 2;
  static constexpr std::int64_t kRows = 6, kVectors = 2;
};

}  // namespace

const MatmulLoops kMatmulLoopsAvx2 = make_matmul_loops<Avx2>();

}  // namespace fp8lab::cpu
