#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/elements.cuh"
#include "backend/cuda/peer/peer_kernels.h"

// Sums are bitwise equal to the sums of comm/reduce.h: added in rank order, in float, rounded once. Maxima are bitwise
// equal too.
namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoadsInFlight = 4;
/// Most groups of kThreads threads in a block, if a block has a multiprocessor to itself.
constexpr int kMostCopyGroups = 4;
/// Hazard: a block that spins on another GPU's flag occupies its place on the multiprocessor. If the grid were larger
/// than what is resident at once, a waiting block could keep out the very block that the other GPU waits for, and both
/// GPUs would wait forever. Rule: the grid of a kernel that waits is fully resident on 128 multiprocessors. On a GPU
/// with fewer, a block waits only for flags that other GPUs' first blocks raise as they begin, and first blocks start
/// first.
constexpr int kWaitingBlocksEach = 3;
constexpr std::int64_t kMostWaitingBlocks = 128 * kWaitingBlocksEach;

template <class Job, std::size_t Size>
__device__ int job_of_block(const std::array<Job, Size>& jobs, int count, std::int64_t block) {
  const Job* all = reinterpret_cast<const Job*>(&jobs);
  int job = 0;
  while (job + 1 < count && all[job + 1].first_block <= block) ++job;
  return job;
}

/// Copies one block of a batch, with kThreads threads.
__device__ void copy_stretch(const CopyBatch& batch, std::int64_t block, int thread) {
  const CopyJob* jobs = reinterpret_cast<const CopyJob*>(&batch.jobs);
  const CopyJob& job = jobs[job_of_block(batch.jobs, batch.count, block)];
  const std::int64_t first = (block - job.first_block) * kCopyBlockBytes;
  const std::int64_t bytes = job.bytes - first < kCopyBlockBytes ? job.bytes - first : kCopyBlockBytes;
  const auto* from = reinterpret_cast<const uint4*>(job.from + first);
  auto* to = reinterpret_cast<uint4*>(job.to + first);
  const int wide = static_cast<int>(bytes / 16);
  for (int i = thread; i < wide; i += kThreads * kLoadsInFlight) {
    uint4 values[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k)
      if (i + k * kThreads < wide) values[k] = from[i + k * kThreads];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k)
      if (i + k * kThreads < wide) to[i + k * kThreads] = values[k];
  }
  const std::int64_t tail = std::int64_t{wide} * 16 + thread;
  if (tail < bytes) job.to[first + tail] = job.from[first + tail];
}

__device__ void copy_stretches(const CopyBatch& batch) {
  const int groups = static_cast<int>(blockDim.x) / kThreads, group = static_cast<int>(threadIdx.x) / kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  for (std::int64_t block = std::int64_t{blockIdx.x} * groups + group; block < batch.blocks;
       block += std::int64_t{gridDim.x} * groups)
    copy_stretch(batch, block, thread);
}

__global__ void __launch_bounds__(kMostCopyGroups* kThreads) peer_copy_kernel(const __grid_constant__ CopyBatch batch) {
  copy_stretches(batch);
}

template <DType Type>
struct FloatSum {
  using Stored = typename Element<Type>::Storage;
  using Accumulator = float;
  __device__ static float load(Stored x) { return Element<Type>::load(x); }
  __device__ static float combine(float a, float b) { return a + b; }
  __device__ static Stored store(float x) {
    return Element<Type>::store(x != x ? float_from_bits(kFloatQuietNanBits) : x);
  }
};

/// Compares floats as integers of the same order, with NaN above all.
template <DType Type>
struct FloatMax {
  static constexpr std::int32_t kNan = 0x7FFFFFFF;
  using Stored = typename Element<Type>::Storage;
  using Accumulator = std::int32_t;
  __device__ static std::int32_t flip(std::int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
  __device__ static std::int32_t load(Stored x) {
    const std::uint32_t bits = float_bits(Element<Type>::load(x));
    return (bits & kFloatMagnitudeMask) > kFloatInfinityBits ? kNan : flip(static_cast<std::int32_t>(bits));
  }
  __device__ static std::int32_t combine(std::int32_t a, std::int32_t b) { return a < b ? b : a; }
  __device__ static Stored store(std::int32_t key) {
    return Element<Type>::store(
        float_from_bits(key == kNan ? kFloatQuietNanBits : static_cast<std::uint32_t>(flip(key))));
  }
};

template <class Signed, class Unsigned>
struct IntegerSum {
  using Stored = Signed;
  using Accumulator = Unsigned;
  __device__ static Unsigned load(Signed x) { return static_cast<Unsigned>(x); }
  __device__ static Unsigned combine(Unsigned a, Unsigned b) { return a + b; }
  __device__ static Signed store(Unsigned x) { return static_cast<Signed>(x); }
};

template <class Signed>
struct IntegerMax {
  using Stored = Signed;
  using Accumulator = Signed;
  __device__ static Signed load(Signed x) { return x; }
  __device__ static Signed combine(Signed a, Signed b) { return a < b ? b : a; }
  __device__ static Signed store(Signed x) { return x; }
};

template <class Stored, int Width>
struct alignas(sizeof(Stored) * Width) Pack {
  Stored at[Width];
};

/// Reduces elements [first, first + elems) of a job with one block, `Width` of them per load. A thread reads its
/// elements from every source before it writes any, so targets may be sources.
template <class Rule, int Width>
__device__ void reduce_run(std::byte* const* pointers, int sources, int targets, std::int64_t first, int elems) {
  using Stored = typename Rule::Stored;
  using Packed = Pack<Stored, Width>;
  constexpr int kAhead = 4;  // sources whose loads are in flight together
  for (int i = threadIdx.x * Width; i + Width <= elems; i += kThreads * Width) {
    typename Rule::Accumulator sums[Width];
    for (int rank = 0; rank < sources; rank += kAhead) {
      Packed values[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (rank + k < sources)
          values[k] = *reinterpret_cast<const Packed*>(reinterpret_cast<const Stored*>(pointers[rank + k]) + first + i);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (rank + k >= sources) continue;
#pragma unroll
        for (int element = 0; element < Width; ++element) {
          const auto value = Rule::load(values[k].at[element]);
          sums[element] = rank + k == 0 ? value : Rule::combine(sums[element], value);
        }
      }
    }
    Packed results;
#pragma unroll
    for (int element = 0; element < Width; ++element) results.at[element] = Rule::store(sums[element]);
    for (int target = 0; target < targets; ++target)
      *reinterpret_cast<Packed*>(reinterpret_cast<Stored*>(pointers[sources + target]) + first + i) = results;
  }
}

template <class Rule>
__device__ void reduce_block(const ReduceJob& job, std::byte* const* pointers, std::int64_t first, int elems) {
  constexpr int kWidth = 16 / sizeof(typename Rule::Stored);
  if (!job.wide) return reduce_run<Rule, 1>(pointers, job.sources, job.targets, first, elems);
  const int full = elems / kWidth * kWidth;
  reduce_run<Rule, kWidth>(pointers, job.sources, job.targets, first, full);
  reduce_run<Rule, 1>(pointers, job.sources, job.targets, first + full, elems - full);
}

__global__ void __launch_bounds__(kThreads) peer_reduce_kernel(const __grid_constant__ ReduceBatch batch) {
  const ReduceJob* jobs = reinterpret_cast<const ReduceJob*>(&batch.jobs);
  const ReduceJob& job = jobs[job_of_block(batch.jobs, batch.count, blockIdx.x)];
  std::byte* const* pointers = reinterpret_cast<std::byte* const*>(&batch.pointers) + job.first_pointer;
  const std::int64_t first = (blockIdx.x - job.first_block) * kReduceBlockElems;
  const int elems = static_cast<int>(job.elems - first < kReduceBlockElems ? job.elems - first : kReduceBlockElems);
  switch (job.dtype) {
    case DType::kF32:
      return job.maximum ? reduce_block<FloatMax<DType::kF32>>(job, pointers, first, elems)
                         : reduce_block<FloatSum<DType::kF32>>(job, pointers, first, elems);
    case DType::kBF16:
      return job.maximum ? reduce_block<FloatMax<DType::kBF16>>(job, pointers, first, elems)
                         : reduce_block<FloatSum<DType::kBF16>>(job, pointers, first, elems);
    case DType::kI32:
      return job.maximum ? reduce_block<IntegerMax<std::int32_t>>(job, pointers, first, elems)
                         : reduce_block<IntegerSum<std::int32_t, std::uint32_t>>(job, pointers, first, elems);
    default:
      return job.maximum ? reduce_block<IntegerMax<std::int64_t>>(job, pointers, first, elems)
                         : reduce_block<IntegerSum<std::int64_t, std::uint64_t>>(job, pointers, first, elems);
  }
}

__device__ void store_released(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ void store_relaxed(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ std::uint32_t load_acquired(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ std::uint32_t load_relaxed(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ std::uint32_t load_from_host(const std::uint32_t* at) {
  return *static_cast<const volatile std::uint32_t*>(at);
}

__device__ bool is_other(const PeerBarrier& barrier, int rank) { return rank < barrier.ranks && rank != barrier.rank; }

/// The flag of `rank` on the GPU of rank `on`; only `rank` writes it.
__device__ std::uint32_t* flag_of(const PeerBarrier& barrier, int rank, int on) {
  return reinterpret_cast<std::uint32_t* const*>(&barrier.flags)[on] + rank;
}

/// Waits for all other ranks, with one thread for each. Returns false if the wait was abandoned. The host's abort flag
/// is behind a slower bus, so it is read only once in kSpinsBetween spins.
template <std::uint32_t (*kLoad)(const std::uint32_t*)>
__device__ bool wait_for_others(const PeerBarrier& barrier, std::uint32_t number) {
  constexpr int kSpinsBetween = 256;
  const int other = static_cast<int>(threadIdx.x);
  bool abandoned = false;
  if (is_other(barrier, other)) {
    const std::uint32_t* const theirs = flag_of(barrier, other, barrier.rank);
    for (int spin = 1; !abandoned && static_cast<std::int32_t>(kLoad(theirs) - number) < 0; ++spin)
      abandoned = spin % kSpinsBetween == 0 && load_from_host(barrier.abandoned) != 0;
  }
  return __syncthreads_or(abandoned) == 0;
}

__global__ void __launch_bounds__(PeerBarrier::kMostRanks)
    peer_barrier_kernel(const __grid_constant__ PeerBarrier barrier) {
  const int other = static_cast<int>(threadIdx.x);
  if (is_other(barrier, other)) store_released(flag_of(barrier, barrier.rank, other), barrier.number);
  wait_for_others<load_acquired>(barrier, barrier.number);
}

// Each block waits for the other ranks before it writes to them. That first barrier is relaxed: it means that kernels
// which have ended on the other ranks no longer read the destination, and after it this kernel reads only this GPU's
// memory, so it needs no fence (a fence on either side took a microsecond). The last block to end signals the others
// that everything is written. Its fence covers the other blocks' writes, because each block fences before it counts
// itself as finished. If the wait is abandoned, `finished` is left as it is: no launch follows.
__global__ void __launch_bounds__(kThreads, kWaitingBlocksEach)
    peer_copy_between_barriers_kernel(const __grid_constant__ CopyBetweenBarriers copy) {
  static_assert(PeerBarrier::kMostRanks <= kThreads);
  const PeerBarrier& barrier = copy.barrier;
  const int other = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && is_other(barrier, other)) store_relaxed(flag_of(barrier, barrier.rank, other), barrier.number);
  if (!wait_for_others<load_relaxed>(barrier, barrier.number)) return;
  copy_stretches(copy.batch);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    if (atomicAdd(copy.finished, 1u) + 1 == gridDim.x) {
      *copy.finished = 0;
      __threadfence_system();
      for (int rank = 0; rank < barrier.ranks; ++rank)
        if (is_other(barrier, rank)) store_relaxed(flag_of(barrier, barrier.rank, rank), barrier.number + 1);
    }
  }
  if (blockIdx.x == 0) wait_for_others<load_acquired>(barrier, barrier.number + 1);
}

unsigned blocks_of(const CopyBatch& batch, std::int64_t most) {
  return static_cast<unsigned>(batch.blocks < most ? batch.blocks : most);
}

}  // namespace

void peer_barrier(const PeerBarrier& barrier, cudaStream_t stream) {
  peer_barrier_kernel<<<1, PeerBarrier::kMostRanks, 0, stream>>>(barrier);
  cuda_check_launch("peer_barrier_kernel");
}

void peer_copy_between_barriers(const CopyBetweenBarriers& copy, cudaStream_t stream) {
  peer_copy_between_barriers_kernel<<<blocks_of(copy.batch, kMostWaitingBlocks), kThreads, 0, stream>>>(copy);
  cuda_check_launch("peer_copy_between_barriers_kernel");
}

void peer_copy(const CopyBatch& batch, cudaStream_t stream, int multiprocessors) {
  if (batch.blocks == 0) return;
  const bool all = multiprocessors == 0;
  peer_copy_kernel<<<blocks_of(batch, all ? batch.blocks : multiprocessors),
                     all ? kThreads : kMostCopyGroups * kThreads, 0, stream>>>(batch);
  cuda_check_launch("peer_copy_kernel");
}

void peer_reduce(const ReduceBatch& batch, cudaStream_t stream) {
  if (batch.blocks == 0) return;
  peer_reduce_kernel<<<static_cast<unsigned>(batch.blocks), kThreads, 0, stream>>>(batch);
  cuda_check_launch("peer_reduce_kernel");
}

}  // namespace fp8lab::cuda
