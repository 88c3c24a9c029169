#pragma once

#include <cstdint>

// The one door to the host's matrix library; matmul_onednn.cpp or matmul_openblas.cpp lies behind it, by the build's
// choice.
namespace fp8lab::cpu {

/// A float matrix as libraries take it: rows contiguous and `row_stride` >= max(columns, 1) apart. `transposed`: what
/// is stored is the transpose of the matrix meant.
struct MatmulOperand {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  bool transposed = false;
};

/// c = a * b^T + beta * c, with a [m, k], b [n, k] and c [m, n]; beta 0 never reads c. Sizes are 1 at least.
struct MatmulArgs {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatmulOperand a;
  MatmulOperand b;
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
  float beta = 0.0f;
};

/// Runs on the calling thread alone: the library would otherwise split the reduction by the number of threads, and
/// cells that run side by side would fight for the cores. The same arguments give the same bits. Throws Error where
/// the library refuses.
void matmul(const MatmulArgs& args);

/// "oneDNN 2.6.3"
const char* matmul_library();

}  // namespace fp8lab::cpu
