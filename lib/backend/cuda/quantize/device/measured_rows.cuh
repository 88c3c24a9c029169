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

  using Run = Vector<DType::kBF16, 8>;

  __device__ void begin() {}
  __device__ static Run keep(const float (&values)[8]) { return narrow<DType::kBF16>(values); }
  template <int Runs, class PlaceOf>
  __device__ void write(const Run (&runs)[Runs], const PlaceOf& place_of) {
#pragma unroll
    for (int i = 0; i < Runs; ++i)
      if (const RunPlace place = place_of(i); place.there) {
        largest_ = Bits::larger(largest_, Bits::folded(runs[i]));
        runs[i].store(rows_.data, rows_.index(place.row, place.col));
      }
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
