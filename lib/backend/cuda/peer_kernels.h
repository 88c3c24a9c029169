#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

// Copies and reductions over memory of several cards, many arrays a launch, their addresses in the launch's own arguments.
namespace fp8lab::cuda {

/// Both addresses are multiples of 16.
struct CopyJob {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
  std::int64_t first_block = 0;
};

struct CopyBatch {
  static constexpr int kMostJobs = 64;
  std::array<CopyJob, kMostJobs> jobs;
  int count = 0;
  std::int64_t blocks = 0;
};

struct ReduceJob {
  std::int64_t elems = 0;
  std::int64_t first_block = 0;
  int sources = 0;       ///< pointers[first_pointer], ..., then the targets'
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

/// What one block of threads does of a job.
inline constexpr std::int64_t kCopyBlockBytes = 64 << 10;
inline constexpr std::int64_t kReduceBlockElems = 8192;

void peer_copy(const CopyBatch& batch, cudaStream_t stream);
void peer_reduce(const ReduceBatch& batch, cudaStream_t stream);

/// One card's part in a meeting: it writes `number` to its flag on every other card, and waits for theirs here.
struct CardMeeting {
  static constexpr int kMostRanks = 64;
  std::array<std::uint32_t*, kMostRanks> flags;  ///< by rank: those on that rank's card, one for each rank
  int rank = 0;
  int ranks = 0;
  std::uint32_t number = 0;                  ///< one more than at the last meeting by these flags; it may wrap around
  const std::uint32_t* abandoned = nullptr;  ///< in host memory: where it is not 0, nobody is waited for
};
/// What is launched on `stream` after this comes after what every rank launched before its own part.
void peer_meet(const CardMeeting& meeting, cudaStream_t stream);

}  // namespace fp8lab::cuda
