#pragma once

#include <cstdint>

#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/quantize/device/fresh_amax.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"

namespace fp8lab::cuda {

/// A writer of rows: stores results in bf16 and measures them while they are still in registers, in runs of eight.
class MeasuredRows {
 public:
  MeasuredRows(const Elements& rows, const FreshAmax& amax) : rows_(rows), amax_(amax) {}

  static constexpr bool kTakesPairs = false;

  __device__ void begin() {}
  __device__ void write(const float (&values)[8], std::int64_t row, std::int64_t col) {
    const Vector<DType::kBF16, 8> vector = narrow<DType::kBF16>(values);
    largest_ = Bits::larger(largest_, Bits::folded(vector));
    vector.store(rows_.data, rows_.index(row, col));
  }
  /// Must be called by every thread of the block.
  __device__ void finish() const { settle(Bits::unfolded(largest_), amax_); }

 private:
  using Bits = Magnitudes<DType::kBF16>;

  Elements rows_;
  FreshAmax amax_;
  std::uint32_t largest_ = 0;
};

}  // namespace fp8lab::cuda
