#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/device/bulk_copy.cuh"
#include "backend/cuda/device/wgmma.cuh"

// Data movement of a block of attention's backward: tiles in shared memory, the barriers, and the two roles
// that move tiles, one thread each: loading tiles of operands, and adding to dQ in order.
//
// Every copy into shared memory completes on a barrier for which its readers wait, and starts only after every warp
// that read the previous contents has arrived at another barrier. correctness/cuda/attention_backward_order_test.cpp
// enumerates the interleavings of the waits for keys and sums. compute-sanitizer's racecheck nevertheless reports the
// copies of `rows` against their readers.
namespace fp8lab::cuda::attention_backward {

inline constexpr int kKeys = 128;
inline constexpr int kQueries = static_cast<int>(kBackwardQueries);
inline constexpr int kGroups = 2;  // number of warp groups that multiply, 64 keys each
inline constexpr int kGroupWarps = wgmma::kGroupThreads / 32;
inline constexpr int kBackwardThreads = (kGroups + 1) * wgmma::kGroupThreads;
inline constexpr int kQueryStages = 3;  // one more than for dO: Q is read until the next tile's logits are computed
inline constexpr int kGradStages = 2;
inline constexpr std::uint32_t kRowsBytes = 2 * kQueries * sizeof(float);
inline constexpr std::uint32_t kSlopesBytes = kKeys * kQueries * 2;

struct BackwardLaunch {
  TensorBackward call;
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap grad_o;
  int key_tiles;
  int query_tiles;
  int jobs;
};

struct Barriers {
  int jobs[2];  ///< numbers of the current job and of the next
  std::uint64_t keys_here, keys_free;
  std::uint64_t q_here[kQueryStages], q_free[kQueryStages];
  std::uint64_t grad_o_here[kGradStages], grad_o_free[kGradStages];
  std::uint64_t sums_here[kGroups], sums_free[kGroups];

  __device__ void make() {
    bulk::make_barrier(at(keys_here), 1);
    // The warps that multiply and the threads that add to dQ arrive here.
    bulk::make_barrier(at(keys_free), kGroups * kGroupWarps + kGroups);
    for (int i = 0; i < kQueryStages; ++i) {
      bulk::make_barrier(at(q_here[i]), 1);
      bulk::make_barrier(at(q_free[i]), kGroups * kGroupWarps);
    }
    for (int i = 0; i < kGradStages; ++i) {
      bulk::make_barrier(at(grad_o_here[i]), 1);
      bulk::make_barrier(at(grad_o_free[i]), kGroups * kGroupWarps);
    }
    for (int i = 0; i < kGroups; ++i) {
      bulk::make_barrier(at(sums_here[i]), kGroupWarps);
      bulk::make_barrier(at(sums_free[i]), 1);
    }
    bulk::open_barriers();
  }
  __device__ static std::uint32_t at(const std::uint64_t& barrier) { return wgmma::shared_address(&barrier); }
};

/// Layout of shared memory: addresses of tiles.
template <int Dim>
struct Places {
  static constexpr std::uint32_t kKeyBytes = kKeys * Dim * 2, kQueryBytes = kQueries * Dim * 2,
                                 kSumsBytes = kQueries * Dim * 4;
  static constexpr std::uint32_t kBytes = 2 * kKeyBytes + (kQueryStages + kGradStages) * kQueryBytes +
                                          2 * kSlopesBytes + kSumsBytes + kQueryStages * kRowsBytes;
  std::uint32_t k, v, first_q, first_grad_o, first_slopes, first_sums, first_rows;

  /// `shared` must start at a multiple of 1024 bytes.
  __device__ explicit Places(const void* shared) {
    k = wgmma::shared_address(shared);
    v = k + kKeyBytes;
    first_q = v + kKeyBytes;
    first_grad_o = first_q + kQueryStages * kQueryBytes;
    first_slopes = first_grad_o + kGradStages * kQueryBytes;
    first_sums = first_slopes + 2 * kSlopesBytes;
    first_rows = first_sums + kSumsBytes;
  }
  __device__ std::uint32_t q(int stage) const { return first_q + static_cast<std::uint32_t>(stage) * kQueryBytes; }
  __device__ std::uint32_t grad_o(int stage) const {
    return first_grad_o + static_cast<std::uint32_t>(stage) * kQueryBytes;
  }
  /// Minus lse of a tile's queries, and minus their sums of dO * O.
  __device__ std::uint32_t rows(int stage) const { return first_rows + static_cast<std::uint32_t>(stage) * kRowsBytes; }
  __device__ std::uint32_t dots(int stage) const { return rows(stage) + kRowsBytes / 2; }
  /// dS of tile t: a panel of keys by queries.
  __device__ std::uint32_t slopes(int t) const {
    return first_slopes + static_cast<std::uint32_t>(t % 2) * kSlopesBytes;
  }
  /// What a tile of keys adds to a tile's dQ: the half of its columns that warp group `half` computes.
  __device__ std::uint32_t sums(int half) const {
    return first_sums + static_cast<std::uint32_t>(half) * kSumsBytes / kGroups;
  }
};

template <int Dim>
inline constexpr std::uint32_t kSharedBytes = Places<Dim>::kBytes + sizeof(Barriers);

/// A position in a ring of `Stages` stages, and the parity of the stage's barrier phase.
template <int Stages>
struct RingSlot {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++stage < Stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// A job: a tile of keys and all queries that see it.
struct Job {
  int tile, kv_head, sequence, members, first_query_tile, end_query_tile, query_tiles;

  /// Numbers are assigned so that a job waits only for jobs of lower numbers.
  __device__ Job(const BackwardLaunch& launch, int number) {
    const AttentionShape& shape = launch.call.shape;
    const int kv_heads = static_cast<int>(shape.kv_heads), line = number / launch.key_tiles;
    tile = launch.key_tiles - 1 - number % launch.key_tiles;
    kv_head = line % kv_heads;
    sequence = line / kv_heads;
    members = static_cast<int>(shape.heads) / kv_heads;
    query_tiles = launch.query_tiles;
    first_query_tile = shape.causal ? tile * (kKeys / kQueries) : 0;
    end_query_tile = query_tiles;
    if (shape.window != 0)
      end_query_tile = static_cast<int>(min(static_cast<std::int64_t>(query_tiles),
                                            (first_key() + kKeys - 1 + shape.window + kQueries - 1) / kQueries));
  }
  __device__ int first_key() const { return tile * kKeys; }
  /// Index of a head of a sequence in `rows`, `grad_q_sums` and `arrivals`.
  __device__ std::int64_t line(const AttentionShape& shape, int member) const {
    return std::int64_t{sequence} * shape.heads + kv_head * members + member;
  }
};

template <int Dim>
__device__ inline void load_panels(std::uint32_t to, const CUtensorMap& map, int head, int sequence, int first_row,
                                   std::uint32_t rows, std::uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < Dim / wgmma::kPanelCols; ++panel)
    bulk::load_box(to + static_cast<std::uint32_t>(panel) * rows * wgmma::kRowBytes, map,
                   head * Dim + panel * wgmma::kPanelCols, sequence, first_row, barrier);
}

/// The role of one thread: takes jobs in order, and loads the keys and values of each, then its tiles of queries.
template <int Dim>
__device__ inline void load_tiles(const BackwardLaunch& launch, const Places<Dim>& places, Barriers& barriers) {
  const std::uint32_t keys_here = Barriers::at(barriers.keys_here);
  RingSlot<kQueryStages> q_slot;
  RingSlot<kGradStages> grad_slot;
  for (unsigned round = 0;; ++round) {
    // Takes a job only after all tiles of the last job have been requested: other blocks wait for what a job that has
    // been taken adds.
    const int number = static_cast<int>(atomicAdd(launch.call.next_job, 1u));
    bulk::wait(Barriers::at(barriers.keys_free), ~round & 1);
    static_cast<volatile int&>(barriers.jobs[round % 2]) = number;
    if (number >= launch.jobs) return bulk::arrive(keys_here);
    const Job job(launch, number);
    bulk::arrive_with(keys_here, 2 * Places<Dim>::kKeyBytes);
    load_panels<Dim>(places.k, launch.k, job.kv_head, job.sequence, job.first_key(), kKeys, keys_here);
    load_panels<Dim>(places.v, launch.v, job.kv_head, job.sequence, job.first_key(), kKeys, keys_here);
    for (int member = 0; member < job.members; ++member) {
      const int head = job.kv_head * job.members + member;
      const float* const rows =
          launch.call.rows + job.line(launch.call.shape, member) * job.query_tiles * (2 * kQueries);
      for (int m = job.first_query_tile; m < job.end_query_tile; ++m) {
        const std::uint32_t q_here = Barriers::at(barriers.q_here[q_slot.stage]);
        bulk::wait(Barriers::at(barriers.q_free[q_slot.stage]), q_slot.parity ^ 1);
        bulk::arrive_with(q_here, Places<Dim>::kQueryBytes + kRowsBytes);
        load_panels<Dim>(places.q(q_slot.stage), launch.q, head, job.sequence, m * kQueries, kQueries, q_here);
        bulk::load(places.rows(q_slot.stage), rows + m * (2 * kQueries), kRowsBytes, q_here);
        q_slot.advance();
        const std::uint32_t grad_o_here = Barriers::at(barriers.grad_o_here[grad_slot.stage]);
        bulk::wait(Barriers::at(barriers.grad_o_free[grad_slot.stage]), grad_slot.parity ^ 1);
        bulk::arrive_with(grad_o_here, Places<Dim>::kQueryBytes);
        load_panels<Dim>(places.grad_o(grad_slot.stage), launch.grad_o, head, job.sequence, m * kQueries, kQueries,
                         grad_o_here);
        grad_slot.advance();
      }
    }
  }
}

/// Waits for the keys and values of this round's job and returns its number; a number not below launch.jobs means that
/// there are no more jobs.
__device__ inline int await_job(const Barriers& barriers, unsigned round) {
  bulk::wait(Barriers::at(barriers.keys_here), round & 1);
  return static_cast<const volatile int&>(barriers.jobs[round % 2]);
}

/// The role of one thread: adds its half of the columns of every tile's dQ to the sums, after the tiles of keys that
/// come first.
template <int Dim>
__device__ inline void add_grad_q(const BackwardLaunch& launch, int half, const Places<Dim>& places,
                                  const Barriers& barriers) {
  constexpr std::uint32_t kHalfBytes = Places<Dim>::kSumsBytes / kGroups;
  const std::uint32_t here = Barriers::at(barriers.sums_here[half]), free = Barriers::at(barriers.sums_free[half]);
  const bool causal = launch.call.shape.causal;
  unsigned parity = 0;
  for (unsigned round = 0;; ++round) {
    const int number = await_job(barriers, round);
    if (number >= launch.jobs) return;
    // Hazard: a job of one tile is multiplied before this thread waits for its sums. If keys_here passed two phases
    // meanwhile, this thread would take the second phase for the first and wait forever. Rule: the next keys are loaded
    // only after this thread has seen the current ones.
    bulk::arrive(Barriers::at(barriers.keys_free));
    const Job job(launch, number);
    for (int member = 0; member < job.members; ++member) {
      const std::int64_t first =
          (job.line(launch.call.shape, member) * job.query_tiles + job.first_query_tile) * kGroups + half;
      float* sums = launch.call.grad_q_sums + first * (kHalfBytes / sizeof(float));
      unsigned* arrived = launch.call.arrivals + first;
      unsigned seen = 0;  // the current tile's count as it was some time ago
      for (int m = job.first_query_tile; m < job.end_query_tile; ++m) {
        const auto before = static_cast<unsigned>((causal ? m / (kKeys / kQueries) : launch.key_tiles - 1) - job.tile);
        bulk::wait(here, parity);
        parity ^= 1;
        if (before == 0) {
          bulk::store(sums, places.sums(half), kHalfBytes);
        } else {
          if (seen != before) bulk::wait_for_count(arrived, before);
          bulk::order_after_accesses();
          bulk::add(sums, places.sums(half), kHalfBytes);
        }
        bulk::commit();
        if (m + 1 < job.end_query_tile) seen = bulk::see_count(arrived + kGroups);
        bulk::wait_until_read();
        bulk::arrive(free);
        bulk::wait_until_written();
        bulk::set_count(arrived, before + 1);
        arrived += kGroups;
        sums += kGroups * kHalfBytes / sizeof(float);
      }
    }
  }
}

}  // namespace fp8lab::cuda::attention_backward
