#pragma once

#include <cstdint>

#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/pieces.cuh"
#include "backend/cuda/quantize/cast_target.h"
#include "core/float8.h"

// Casts new values to eight bits inside the kernel that computes or reads them.
namespace fp8lab::cuda {

/// A tile's quantized data, transposed. A line is one word longer than a column, so that neighbouring threads share few
/// banks.
struct DataTile {
  static constexpr int kPitch = kListTile + 4;
  alignas(16) std::uint8_t data[2][kListTile * kPitch];  ///< two buffers: one is written while the other is read
};

/// The cast of a block's values into its target, as one thread sees it.
class TargetCast {
 public:
  /// `first`: this block processes the tensor's first piece, so it writes the inverse scales.
  __device__ __forceinline__ TargetCast(const TargetItem& item, DataTile& tile, bool first) : item_(item), tile_(tile) {
    casts_ = item.rowwise != nullptr || item.columnwise != nullptr;
    if (!casts_) return;
    scale_ = item.scale != nullptr ? *item.scale
                                   : scale_from_amax(*item.measured, item.fp8_max, item.epsilon, item.power_of_two);
    if (!first || threadIdx.x != 0) return;
    if (item.rowwise_scale_inv != nullptr) *item.rowwise_scale_inv = 1.0f / scale_;
    if (item.columnwise_scale_inv != nullptr) *item.columnwise_scale_inv = 1.0f / scale_;
  }

  /// Casts the vector at index `at`, which is in row `of_tile` of the thread's rows in a tile. Overwrites `values`.
  __device__ __forceinline__ void take(float (&values)[kVector], std::int64_t at, int of_tile) {
    if (item_.nominal == DType::kBF16) {
      widen_bf162(narrow_bf162(values[0], values[1]), values[0], values[1]);
      widen_bf162(narrow_bf162(values[2], values[3]), values[2], values[3]);
    } else if (item_.nominal == DType::kF16) {
      widen_half2(narrow_half2(values[0], values[1]), values[0], values[1]);
      widen_half2(narrow_half2(values[2], values[3]), values[2], values[3]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) measure(values[i]);
    if (!casts_) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] *= scale_;
    const unsigned data = encode4(item_.dtype, values);
    if (item_.rowwise != nullptr) *reinterpret_cast<unsigned*>(item_.rowwise + at) = data;
    if (!item_.tiles) return;
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / kVectorsOfRow * kListVectors + of_tile, col = thread % kVectorsOfRow * kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      tile_.data[buffer_][(col + i) * DataTile::kPitch + row] = static_cast<std::uint8_t>(data >> (8 * i));
  }

  /// Casts one element.
  __device__ __forceinline__ void take_one(float value, std::int64_t row, std::int64_t col) {
    float rounded = value;
    if (item_.nominal == DType::kBF16) rounded = bf16_to_f32(f32_to_bf16(value));
    if (item_.nominal == DType::kF16) rounded = f16_to_f32(f32_to_f16(value));
    measure(rounded);
    if (!casts_) return;
    const float scaled = rounded * scale_;
    const auto at = [&](const Strides& strides, std::int64_t r, std::int64_t c) {
      return r * strides.row + c * strides.col;
    };
    if (item_.rowwise != nullptr) store1(item_.rowwise, item_.dtype, at(item_.rowwise_strides, row, col), scaled);
    if (item_.columnwise != nullptr)
      store1(item_.columnwise, item_.dtype, at(item_.columnwise_strides, col, row), scaled);
  }

  /// Writes the transpose of the tile that begins at (row, col) of a rows x cols matrix. Must be called by all threads.
  __device__ __forceinline__ void write_tile(std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
    constexpr int kPerThread = 16, kPerLine = kListTile / kPerThread;
    __syncthreads();
    const int line = static_cast<int>(threadIdx.x) / kPerLine,
              first = static_cast<int>(threadIdx.x) % kPerLine * kPerThread;
    const std::uint8_t* from = tile_.data[buffer_] + line * DataTile::kPitch + first;
    buffer_ = 1 - buffer_;
    if (col + line < cols) {
      auto* const to = reinterpret_cast<std::uint8_t*>(item_.columnwise) + (col + line) * rows + row + first;
      const bool aligned =
          rows % kPerThread == 0 && reinterpret_cast<std::uintptr_t>(item_.columnwise) % kPerThread == 0;
      if (aligned) {
        const auto* words = reinterpret_cast<const unsigned*>(from);
        if (row + first < rows) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
      } else {
#pragma unroll 1
        for (int i = 0; i < kPerThread && row + first + i < rows; ++i) to[i] = from[i];
      }
    }
  }

  /// Raises the amax, after all values. Must be called by all threads.
  __device__ __forceinline__ void finish() {
    if (item_.amax == nullptr) return;
    const unsigned largest = block_max(amax_);
    // Magnitudes order like signed integers, with NaN above all.
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(item_.amax), static_cast<int>(largest));
  }

 private:
  static constexpr int kVectorsOfRow = kListTile / kVector;

  __device__ __forceinline__ void measure(float value) {
    amax_ = max(amax_, __float_as_uint(value) & kFloatMagnitudeMask);
  }

  const TargetItem& item_;
  DataTile& tile_;
  float scale_ = 1.0f;
  unsigned amax_ = 0;
  int buffer_ = 0;
  bool casts_ = false;
};

}  // namespace fp8lab::cuda
