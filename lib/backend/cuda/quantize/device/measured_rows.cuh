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

  __device__ void begin() {}
  __device__ void write(const float (&values)[8], std::int64_t row, std::int64_t col) {
    Vector<DType::kBF16, 8> vector;
    pack<DType::kBF16>(values, vector.words);
    largest_ = Bits::larger(largest_, Bits::folded(vector));
    auto* const to = reinterpret_cast<std::uint16_t*>(rows_.data) + rows_.index(row, col);
    *reinterpret_cast<uint4*>(to) = make_uint4(vector.words[0], vector.words[1], vector.words[2], vector.words[3]);
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
