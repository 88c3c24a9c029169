#pragma once

#include <cstdint>

// The one door to the host's matrix library; matmul_onednn.cpp or matmul_openblas.cpp lies behind it, by the build's choice.
namespace fp8lab::cpu {

struct MatmulArgs {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const float* a = nullptr;  ///< [m, k], row-major, rows `lda` >= max(k, 1) apart
  std::int64_t lda = 0;
  const float* b = nullptr;  ///< [n, k], row-major, rows `ldb` >= max(k, 1) apart: the product is a * b^T
  std::int64_t ldb = 0;
  float* c = nullptr;        ///< [m, n], row-major, rows `ldc` >= max(n, 1) apart
  std::int64_t ldc = 0;
  float beta = 0.0f;         ///< c = a * b^T + beta * c; 0 never reads c
};

/// Runs on the calling thread alone: the library would otherwise split the reduction by the number of threads, and cells
/// that run side by side would fight for the cores. The same arguments give the same bits. Sizes are 1 at least.
/// Throws Error where the library refuses.
void matmul(const MatmulArgs& args);

/// "oneDNN 2.6.3"
const char* matmul_library();

}  // namespace fp8lab::cpu
