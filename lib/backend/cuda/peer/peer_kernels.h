#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/peer_access.h"
#include "core/dtype.h"

// Copies and reductions over the memory of several GPUs: many arrays per launch, their addresses in the launch's own
// arguments.
namespace fp8lab::cuda {

/// Both addresses must be multiples of 16.
struct CopyJob {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
  std::int64_t first_block = 0;
};

struct CopyBatch {
  static constexpr int kMostJobs = 64;
  std::array<CopyJob, kMostJobs> jobs;  ///< the first `count` are valid
  int count = 0;
  std::int64_t blocks = 0;

  bool full() const { return count == kMostJobs; }
  void add(const PeerCopy& copy);
};

struct ReduceJob {
  std::int64_t elems = 0;
  std::int64_t first_block = 0;
  int sources = 0;  ///< pointers[first_pointer], ... are the sources, then the targets
  int targets = 0;
  int first_pointer = 0;
  DType dtype = DType::kF32;
  bool maximum = false;
  bool wide = false;  ///< all addresses are multiples of 16
};

struct ReduceBatch {
  static constexpr int kMostJobs = 32;
  static constexpr int kMostPointers = 256;
  std::array<ReduceJob, kMostJobs> jobs;
  std::array<std::byte*, kMostPointers> pointers;
  int count = 0;
  int pointers_used = 0;
  std::int64_t blocks = 0;
};

static_assert(sizeof(CopyBatch) <= 4000 && sizeof(ReduceBatch) <= 4000, "arguments of a launch are 4 KiB at most");

/// How much of a job one block of threads processes.
inline constexpr std::int64_t kCopyBlockBytes = 16 << 10;
inline constexpr std::int64_t kReduceBlockElems = 8192;

/// Copies a batch, on at most `multiprocessors` multiprocessors (0: all). Does nothing if `batch` is empty.
void peer_copy(const CopyBatch& batch, cudaStream_t stream, int multiprocessors = 0);
void peer_reduce(const ReduceBatch& batch, cudaStream_t stream);

/// One GPU's part in a barrier: it writes `number` to its flag on every other GPU and waits for their flags on its own.
struct PeerBarrier {
  static constexpr int kMostRanks = 64;
  std::array<std::uint32_t*, kMostRanks> flags;  ///< by rank: the flags on that rank's GPU, one per rank
  int rank = 0;
  int ranks = 0;
  std::uint32_t number = 0;                  ///< one more than at the last barrier on these flags; may wrap around
  const std::uint32_t* abandoned = nullptr;  ///< abort flag in host memory: if it is not 0, no rank is waited for
};
/// Work launched on `stream` after this runs after everything that every rank launched before its own part of the
/// barrier.
void peer_barrier(const PeerBarrier& barrier, cudaStream_t stream);

/// peer_barrier(), peer_copy() of a batch that is not empty, and the next peer_barrier() in one launch; uses two
/// barrier numbers. The sources must be on this GPU: the first barrier does not make other ranks' writes visible.
struct CopyBetweenBarriers {
  CopyBatch batch;
  PeerBarrier barrier;
  std::uint32_t* finished = nullptr;  ///< a counter on this GPU, used by launches of one stream; 0 before the first
};
static_assert(sizeof(CopyBetweenBarriers) <= 4000, "arguments of a launch are 4 KiB at most");
void peer_copy_between_barriers(const CopyBetweenBarriers& copy, cudaStream_t stream);

}  // namespace fp8lab::cuda
