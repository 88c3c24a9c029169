#pragma once

#include <cstdint>

// FP32 matrix products of the `cpu` device, with the same bits on every processor and for every layout.
namespace fp8lab::cpu {

/// A float matrix with contiguous rows that start `row_stride` >= max(columns, 1) elements apart. If `transposed`,
/// memory holds the transpose of the operand.
struct MatmulOperand {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  bool transposed = false;
};

/// How the products of an element are summed.
enum class Sums {
  kF32,  ///< as described at matmul()
  /// As a Hopper tensor core sums products of 8-bit data. An instruction adds kTensorCoreStep products to an
  /// accumulator: all are truncated towards zero to multiples of 2^(e - kTensorCoreBits); e is the exponent of
  /// the largest magnitude among them, and then added exactly. After kTensorCoreSpan products the accumulator is added
  /// to an FP32 sum and starts again from zero. Sums with an Inf or NaN are FP32's.
  kTensorCore,
  kFastTensorCore,  ///< the same with one accumulator for the entire sum
};
inline constexpr std::int64_t kTensorCoreStep = 32, kTensorCoreSpan = 128;
inline constexpr int kTensorCoreBits = 13;

/// c = a * b^T, with a [m, k], b [n, k] and c [m, n]; c is overwritten and never read before that. Sizes may be 0.
struct MatmulArgs {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatmulOperand a;
  MatmulOperand b;
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
  Sums sums = Sums::kF32;
};

/// Each element's sum over k is cut into runs of this many products: the products of a run are added in order,
/// beginning with 0, then the sums of the runs are added in order. Short runs keep the rounding error of long sums
/// small: a term passes through at most kMatmulRun + k / kMatmulRun additions.
inline constexpr std::int64_t kMatmulRun = 256;

/// Rounds every product and every sum to FP32, without fused multiply-add, except as `sums` specifies. An element's
/// bits, except a NaN's payload, therefore depend only on its row of `a` and its row of `b`: not on layout, size,
/// neighbours, threads or instruction set. Runs only on the calling thread, since cells that run side by side would
/// otherwise compete for the cores.
void matmul(const MatmulArgs& args);
/// The same with the given inner loops. Without them, matmul() uses the loops of the instruction set in use.
struct MatmulLoops;
void matmul(const MatmulArgs& args, const MatmulLoops& loops);

}  // namespace fp8lab::cpu
