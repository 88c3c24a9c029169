#pragma once

#include <cstdint>

#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/quantize/device/block_scale.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"
#include "backend/cuda/quantize/quantize_results.h"

// A writer of rows: casts results while they are still in registers.
namespace fp8lab::cuda {

/// Rounds values to bf16 and casts those to E4M3: under one scale (Block 0), or in row-wise blocks of 32 (E8M0 scales)
/// or 128 (f32 scales). Neighbouring threads of a warp must hold neighbouring runs of one row, all 32 of them.
template <int Block>
class QuantizedRows {
 public:
  using Run = Vector<DType::kBF16, 8>;

  explicit QuantizedRows(const RowCast& cast) : cast_(cast) {}

  __device__ void begin() {
    if constexpr (Block == 0) {
      scale_ = *cast_.scale;
      if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        for (float* const inverse : cast_.scale_inv)
          if (inverse != nullptr) *inverse = inverse_scale(scale_);
    }
  }
  /// A run as write() takes it. Its NaNs have other bits than the host's, which no result shows.
  __device__ static Run keep(const float (&values)[8]) {
    Run run;
#pragma unroll
    for (int i = 0; i < 4; ++i) run.words[i] = pack_numbers<DType::kBF16>(values[2 * i], values[2 * i + 1]);
    return run;
  }
  /// Casts this thread's runs at place_of(0), place_of(1), ...; must be called by full warps. Runs without a place must
  /// hold zeros or elements of the result.
  template <int Runs, class PlaceOf>
  __device__ void write(const Run (&runs)[Runs], const PlaceOf& place_of) {
    float scales[Runs];
    if constexpr (Block == 0) {
#pragma unroll
      for (int i = 0; i < Runs; ++i) {
        largest_ = Bits::larger(largest_, Bits::folded(runs[i]));
        scales[i] = scale_;
      }
    } else {
      block_scales(runs, place_of, scales);
    }
#pragma unroll
    for (int i = 0; i < Runs; ++i)
      if (const RunPlace place = place_of(i); place.there)
        cast_vector<DType::kE4M3>(runs[i], scales[i]).store(cast_.data + place.row * cast_.pitch + place.col);
  }
  /// Must be called by every thread of the block.
  __device__ void finish() const {
    if constexpr (Block == 0) {
      if (cast_.amax == nullptr) return;
      const std::uint32_t largest = min(warp_max(Bits::unfolded(largest_)), kFloatQuietNanBits);  // the host's NaN
      if (threadIdx.x % 32 == 0) raise_amax(cast_.amax, largest);
    }
  }

 private:
  using Bits = Magnitudes<DType::kBF16>;

  /// The scales of the blocks that the runs belong to; stores them too. The kThreads threads that share a block divide
  /// the blocks of all their runs among themselves, so that each scale is computed once. At each step of the maximum a
  /// thread keeps half of its runs, and leaves the others to its partner.
  template <int Runs, class PlaceOf>
  __device__ void block_scales(const Run (&runs)[Runs], const PlaceOf& place_of, float (&scales)[Runs]) const {
    constexpr int kThreads = Block / 8, kPairs = Runs / 2;
    static_assert(Runs % 2 == 0);
    constexpr bool kMany = Runs > kThreads;  // a thread has both runs of kOwnPairs pairs, else one run
    constexpr int kOwnPairs = kMany ? kPairs / kThreads : 1;
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    std::uint32_t words[kPairs];  // the magnitudes of runs i (in the lower 16 bits) and i + kPairs
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t low = Bits::folded(runs[i]), high = Bits::folded(runs[i + kPairs]);
      words[i] = Bits::larger(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
    }
    int first = 0;  // words[i] is pair first + i
#pragma unroll
    for (int distance = 1, count = kPairs; distance < kThreads; distance *= 2) {
      if (count == 1) {
        words[0] = Bits::larger(words[0], __shfl_xor_sync(kAll, words[0], distance));
        continue;
      }
      count /= 2;
      const bool upper = (thread & distance) != 0;
      if (upper) first += count;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const std::uint32_t given = __shfl_xor_sync(kAll, upper ? words[i] : words[i + count], distance);
        words[i] = Bits::larger(upper ? words[i + count] : words[i], given);
      }
    }
    float own[kMany ? 2 : 1][kOwnPairs];
#pragma unroll
    for (int k = 0; k < (kMany ? 2 : 1); ++k)
#pragma unroll
      for (int i = 0; i < kOwnPairs; ++i) {
        const bool high = kMany ? k == 1 : (thread & kPairs) != 0;
        const RunPlace place = place_of(first + i + (high ? kPairs : 0));
        own[k][i] = scale_of(Bits::widened(high ? words[i] >> 16 : words[i] & 0xFFFFu), place, thread < Runs);
      }
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      int pair = i % kPairs, owner = kMany ? 0 : i / kPairs * kPairs;
#pragma unroll
      for (int distance = 1, count = kPairs; distance < kThreads && count > 1; distance *= 2) {
        count /= 2;
        if (pair < count) continue;
        pair -= count;
        owner += distance;
      }
      scales[i] = __shfl_sync(kAll, own[kMany ? i / kPairs : 0][pair], owner, kThreads);
    }
  }
  __device__ float scale_of(std::uint32_t largest, const RunPlace& place, bool stores) const {
    const std::int64_t at = place.row * cast_.scale_row_stride + place.col / Block * cast_.scale_col_stride;
    stores = stores && place.there;
    if constexpr (Block == 32) {
      const std::uint8_t byte = e8m0_scale(cast_.rule, largest);
      if (stores) reinterpret_cast<std::uint8_t*>(cast_.scales)[at] = byte;
      return e8m0_multiplier(byte);
    } else {
      const float scale = float_scale(cast_.rule, largest);
      if (stores) reinterpret_cast<float*>(cast_.scales)[at] = inverse_scale(scale);
      return scale;
    }
  }

  RowCast cast_;
  float scale_ = 1.0f;
  std::uint32_t largest_ = 0;
};

}  // namespace fp8lab::cuda
