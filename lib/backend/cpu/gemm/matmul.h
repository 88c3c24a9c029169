#pragma once

#include <cstdint>

// FP32 matrix products of the `cpu` device, with the same bits on every processor and for every layout.
namespace fp8lab::cpu {

/// A float matrix whose rows are contiguous and `row_stride` >= max(columns, 1) apart. `transposed`: what is stored is
/// the transpose of the matrix meant.
struct MatmulOperand {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  bool transposed = false;
};

/// c = a * b^T, with a [m, k], b [n, k] and c [m, n]; c is written and never read before. Sizes may be 0.
struct MatmulArgs {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatmulOperand a;
  MatmulOperand b;
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
};

/// Each element's products are summed in runs of this many: a run's products in order, beginning with 0, then the runs'
/// sums in order. Short runs keep the rounding error of long sums small: a term passes through at most
/// kMatmulRun + k / kMatmulRun additions.
inline constexpr std::int64_t kMatmulRun = 256;

/// Every product and every sum is rounded to FP32; nothing is fused. So an element's bits depend on its row of `a` and
/// its row of `b` alone, NaN's payload excepted: on no layout, size, neighbour, thread or instruction set. Runs on the
/// calling thread alone, since cells that run side by side would otherwise fight for the cores.
void matmul(const MatmulArgs& args);

}  // namespace fp8lab::cpu
