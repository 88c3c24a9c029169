#include "backend/cpu/gemm/matmul_loops_body.h"

// Compiled for the architecture's baseline (SSE2 on x86-64).
namespace fp8lab::cpu {
namespace {

struct Baseline {
  using Vector = float __attribute__((vector_size(16)));
  using GroupVector = Vector;
  static constexpr std::int64_t kGroups = 1;
  static constexpr std::int64_t kRows = 3, kVectors = 4;
};

}  // namespace

const MatmulLoops kMatmulLoopsBaseline = make_matmul_loops<Baseline>();

}  // namespace fp8lab::cpu
