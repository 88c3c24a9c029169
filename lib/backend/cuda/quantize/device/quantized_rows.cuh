#pragma once

#include <cstdint>

#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/quantize/device/block_scale.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"
#include "backend/cuda/quantize/quantize_results.h"

// A writer of rows: casts results while they are still in registers, in runs of eight or pairs of them. The runs of a
// pair share the work for a block's scale, and fill a store of 16 bytes.
namespace fp8lab::cuda {

/// Rounds values to bf16 and casts those to E4M3: under one scale (Block 0), or in row-wise blocks of 32 (E8M0 scales)
/// or 128 (f32 scales). Neighbouring lanes of a warp must hold neighbouring runs of one row, at least all runs of a
/// block.
template <int Block>
class QuantizedRows {
 public:
  static constexpr bool kTakesPairs = true;

  explicit QuantizedRows(const RowCast& cast) : cast_(cast) {}

  __device__ void begin() {
    if constexpr (Block == 0) {
      scale_ = *cast_.scale;
      if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        for (float* const inverse : cast_.scale_inv)
          if (inverse != nullptr) *inverse = inverse_scale(scale_);
    }
  }
  __device__ void write(const float (&values)[8], std::int64_t row, std::int64_t col) {
    write_runs({narrow<DType::kBF16>(values)}, row, col);
  }
  __device__ void write(const float (&pair)[2][8], std::int64_t row, std::int64_t col) {
    write_runs({narrow<DType::kBF16>(pair[0]), narrow<DType::kBF16>(pair[1])}, row, col);
  }
  /// Must be called by every thread of the block.
  __device__ void finish() const {
    if constexpr (Block == 0) {
      if (cast_.amax == nullptr) return;
      const std::uint32_t largest = warp_max(Bits::unfolded(largest_));
      if (threadIdx.x % 32 == 0) raise_amax(cast_.amax, largest);
    }
  }

 private:
  using Bits = Magnitudes<DType::kBF16>;

  template <int Runs>
  __device__ void write_runs(const Vector<DType::kBF16, 8> (&runs)[Runs], std::int64_t row, std::int64_t col) {
    std::uint32_t folded = 0;
#pragma unroll
    for (int i = 0; i < Runs; ++i) folded = Bits::larger(folded, Bits::folded(runs[i]));
    if constexpr (Block == 0)
      largest_ = Bits::larger(largest_, folded);
    else
      scale_ = block_scale<Block / (8 * Runs)>(Bits::unfolded(folded), row, col);
    Vector<DType::kE4M3, 8 * Runs> cast;
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Vector<DType::kE4M3, 8> run = cast_vector<DType::kE4M3>(runs[i], scale_);
      cast.words[2 * i] = run.words[0];
      cast.words[2 * i + 1] = run.words[1];
    }
    cast.store(cast_.data + row * cast_.pitch + col);
  }

  /// `kLanes` neighbouring lanes hold a block. Other lanes may be beyond the end of the row.
  template <unsigned kLanes>
  __device__ float block_scale(std::uint32_t largest, std::int64_t row, std::int64_t col) const {
    const unsigned lanes = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
    for (unsigned distance = 1; distance < kLanes; distance *= 2)
      largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
    const std::int64_t at = row * cast_.scale_row_stride + col / Block * cast_.scale_col_stride;
    const bool writes = threadIdx.x % kLanes == 0;
    if constexpr (Block == 32) {
      const std::uint8_t byte = e8m0_scale(cast_.rule, largest);
      if (writes) reinterpret_cast<std::uint8_t*>(cast_.scales)[at] = byte;
      return e8m0_multiplier(byte);
    } else {
      const float scale = float_scale(cast_.rule, largest);
      if (writes) reinterpret_cast<float*>(cast_.scales)[at] = inverse_scale(scale);
      return scale;
    }
  }

  RowCast cast_;
  float scale_ = 1.0f;
  std::uint32_t largest_ = 0;
};

}  // namespace fp8lab::cuda
