#pragma once

#include <cstdint>

#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/device/sums.cuh"

// A row that its warps, one to eight, read once and keep in registers, in runs of kSumRun elements. They add it up in
// the order of core/sum_order.h, which has eight groups of 32 neighbouring runs. A single warp has all eight groups,
// and needs no barrier.
namespace fp8lab::cuda {

/// A row has Warps * kSumLanes columns at most, so that every thread has eight runs.
template <int Warps>
class RowWarps {
 public:
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kGroups = kSumThreads / 32 / Warps;  ///< groups of runs that a warp has
  static constexpr int kRuns = kGroups * Warps, kCols = Warps * kSumLanes;
  static constexpr int kGroupCols = 32 * kSumRun;

  __device__ static int index() { return static_cast<int>(threadIdx.x) / kThreads; }
  __device__ static bool first_thread() { return threadIdx.x % kThreads == 0; }
  /// The thread's first column, and the distance from there to run i.
  __device__ static int first_col() {
    return static_cast<int>(threadIdx.x) % kThreads / 32 * (kGroups * kGroupCols) +
           static_cast<int>(threadIdx.x) % 32 * kSumRun;
  }
  __device__ static constexpr int distance(int i) { return i / kGroups * kSumLanes + i % kGroups * kGroupCols; }

  /// The sum of term(i, x) over the elements x of the runs i; read(i, values) reads a run. `shared` has room for a sum
  /// of each warp of the block, and may be reused after the row's next sum.
  template <class Read, class Term>
  __device__ static float sum(float* shared, const Read& read, const Term& term) {
    float sums[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float partials[kSumRun] = {};
#pragma unroll
      for (int round = 0; round < Warps; ++round) {
        const int i = round * kGroups + group;
        float x[kSumRun];
        read(i, x);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) partials[j] += term(i, x[j]);
      }
      sums[group] = join_run(partials);
    }
    const float own = join_groups(sums);
    if constexpr (Warps == 1) return own;
    float* const of_row = shared + index() * Warps;
    if (threadIdx.x % 32 == 0) of_row[threadIdx.x % kThreads / 32] = own;
    // A barrier of the row's warps.
    asm volatile("bar.sync %0, %1;" ::"r"(index() + 1), "n"(kThreads) : "memory");
    return join_warp_sums<Warps>(of_row);
  }

 private:
  /// Joins the sums of a warp's threads and groups. At each step a thread keeps the sums of half of its groups, and
  /// gives its partner the other sums.
  __device__ static float join_groups(float (&sums)[kGroups]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const int in_warp = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int distance = 1, count = kGroups; distance < 32; distance *= 2) {
      if (count == 1) {
        sums[0] += __shfl_xor_sync(kAll, sums[0], distance);
        continue;
      }
      count /= 2;
      const bool upper = (in_warp & distance) != 0;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float given = __shfl_xor_sync(kAll, upper ? sums[i] : sums[i + count], distance);
        sums[i] = (upper ? sums[i + count] : sums[i]) + given;
      }
    }
    // The group of a thread's sum is now the reversal of the low bits of the thread's number.
#pragma unroll
    for (int distance = kGroups / 2; distance > 0; distance /= 2) sums[0] += __shfl_xor_sync(kAll, sums[0], distance);
    return sums[0];
  }
};

}  // namespace fp8lab::cuda
