#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/experts/device/numbers.cuh"
#include "backend/cuda/kernels.h"
#include "core/check.h"

// A counting sort in four launches, in which nothing depends on the order of threads:
//   count_kernel       a warp per part of the choices, which are split in order: its choices of each expert. It also
//                      writes -1 to its share of `sources`.
//   add_parts_kernel   a warp per expert: its choices in all parts before each part
//   add_experts_kernel one block: the first row of each expert
//   place_kernel       a warp per part again, which gives its choices their rows in order
namespace fp8lab::cuda {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kSteps = 8;                            ///< steps of 32 choices
constexpr std::int64_t kFewestInPart = 32 * kSteps;  ///< choices
constexpr std::int64_t kMostParts = 1024;
constexpr std::int64_t kMostExperts = 12288;  ///< a part's counts fill 48 KiB of shared memory
constexpr int kAddWarps = 8;
constexpr int kAddThreads = 1024;

struct Grouping {
  Numbers chosen;
  std::int64_t choices;  ///< choices of each token
  std::int64_t all;      ///< choices of all tokens
  std::int64_t parts;
  std::int64_t in_part;  ///< a multiple of 32
  std::int64_t experts;
  std::int64_t multiple;
  std::int32_t* counts;  ///< [experts, parts], in scratch
  std::int32_t* totals;  ///< [experts], in scratch
  Numbers rows;
  Numbers sources;
  std::int64_t source_rows;
  Numbers begins;
};

/// Counts the choices of a part in `counts`, a number for each expert, and calls use(choice, token, k, count) with the
/// count of the choice's expert before it: 32 choices at a time, one for each lane. The loads of several steps are in
/// flight together.
template <class Use>
__device__ void count_choices(const Grouping& args, std::int64_t part, std::int32_t* counts, const Use& use) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto choices = static_cast<std::uint32_t>(args.choices);
  const std::int64_t begin = part * args.in_part;
  const std::int64_t end = begin + args.in_part < args.all ? begin + args.in_part : args.all;
  for (std::int64_t first = begin; first < end; first += 32 * kSteps) {
    std::int32_t experts[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const auto choice = static_cast<std::uint32_t>(first + 32 * i + lane), token = choice / choices;
      experts[i] = first + 32 * i + lane < end ? args.chosen.at(token, choice - token * choices) : -1;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const unsigned same = __match_any_sync(kAllLanes, experts[i]);
      const int leader = __ffs(static_cast<int>(same)) - 1;
      std::int32_t count = 0;
      if (experts[i] >= 0 && lane == leader) {
        count = counts[experts[i]];
        counts[experts[i]] = count + __popc(same);
      }
      count = __shfl_sync(kAllLanes, count, leader) + __popc(same & ((1u << lane) - 1u));
      const auto choice = static_cast<std::uint32_t>(first + 32 * i + lane), token = choice / choices;
      if (experts[i] >= 0) use(choice, token, choice - token * choices, count);
      __syncwarp();  // the next leaders may be other lanes
    }
  }
}

/// Shared memory with a number for each expert.
__device__ std::int32_t* of_experts() {
  extern __shared__ std::int32_t memory[];
  return memory;
}

__global__ void __launch_bounds__(32) count_kernel(const Grouping args) {
  std::int32_t* const counts = of_experts();
  const std::int64_t part = blockIdx.x;
  for (std::int64_t r = part * 32 + threadIdx.x; r < args.source_rows; r += args.parts * 32) args.sources.at(r, 0) = -1;
  for (std::int64_t e = threadIdx.x; e < args.experts; e += 32) counts[e] = 0;
  __syncwarp();
  count_choices(args, part, counts, [](std::uint32_t, std::uint32_t, std::uint32_t, std::int32_t) {});
  for (std::int64_t e = threadIdx.x; e < args.experts; e += 32) args.counts[e * args.parts + part] = counts[e];
}

/// The sum of the lanes up to this one.
__device__ std::int32_t sum_up_to_lane(std::int32_t value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

__global__ void __launch_bounds__(32 * kAddWarps) add_parts_kernel(const Grouping args) {
  const std::int64_t expert = static_cast<std::int64_t>(blockIdx.x) * kAddWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (expert >= args.experts) return;
  std::int32_t* const counts = args.counts + expert * args.parts;
  std::int32_t total = 0;
  for (std::int64_t first = 0; first < args.parts; first += 32) {
    const std::int64_t part = first + lane;
    const std::int32_t count = part < args.parts ? counts[part] : 0;
    const std::int32_t sum = sum_up_to_lane(count);
    if (part < args.parts) counts[part] = total + sum - count;
    total += __shfl_sync(kAllLanes, sum, 31);
  }
  if (lane == 0) args.totals[expert] = total;
}

__global__ void __launch_bounds__(kAddThreads) add_experts_kernel(const Grouping args) {
  __shared__ std::int32_t of_warps[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto multiple = static_cast<std::int32_t>(args.multiple);
  std::int32_t begin = 0;  // the first row of this step's first expert
  for (std::int64_t first = 0; first < args.experts; first += kAddThreads) {
    const std::int64_t expert = first + threadIdx.x;
    const std::int32_t total = expert < args.experts ? args.totals[expert] : 0;
    const std::int32_t rows = total / multiple * multiple + (total % multiple != 0 ? multiple : 0);
    const std::int32_t in_warp = sum_up_to_lane(rows);
    if (lane == 31) of_warps[warp] = in_warp;
    __syncthreads();
    const std::int32_t warps = sum_up_to_lane(of_warps[lane]);
    const std::int32_t before_warp = __shfl_sync(kAllLanes, warps, warp) - __shfl_sync(kAllLanes, in_warp, 31);
    if (expert < args.experts) args.begins.at(expert, 0) = begin + before_warp + in_warp - rows;
    begin += __shfl_sync(kAllLanes, warps, 31);
    __syncthreads();
  }
  if (threadIdx.x == 0) args.begins.at(args.experts, 0) = begin;
}

__global__ void __launch_bounds__(32) place_kernel(const Grouping args) {
  std::int32_t* const next = of_experts();
  const std::int64_t part = blockIdx.x;
  for (std::int64_t e = threadIdx.x; e < args.experts; e += 32)
    next[e] = args.begins.at(e, 0) + args.counts[e * args.parts + part];
  __syncwarp();
  count_choices(args, part, next, [&](std::uint32_t choice, std::uint32_t token, std::uint32_t k, std::int32_t row) {
    args.rows.at(token, k) = row;
    args.sources.at(row, 0) = static_cast<std::int32_t>(choice);
  });
}

}  // namespace

void group_rows(const GroupRowsArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const std::int64_t experts = args.begins.rows - 1, all = args.experts.numel();
  check(experts <= kMostExperts, "group_rows: a GPU groups the rows of 12288 experts at most");
  const std::int64_t parts = std::clamp<std::int64_t>((all + kFewestInPart - 1) / kFewestInPart, 1, kMostParts);
  const std::int64_t in_part = ((all + parts - 1) / parts + 31) / 32 * 32;
  std::byte* const scratch = gpu.scratch(static_cast<std::size_t>(experts * (parts + 1)) * sizeof(std::int32_t));
  auto* const counts = reinterpret_cast<std::int32_t*>(scratch);
  const Grouping grouping{.chosen = numbers(args.experts),
                          .choices = args.experts.cols,
                          .all = all,
                          .parts = parts,
                          .in_part = in_part,
                          .experts = experts,
                          .multiple = args.multiple,
                          .counts = counts,
                          .totals = counts + experts * parts,
                          .rows = numbers(args.rows),
                          .sources = numbers(args.sources),
                          .source_rows = args.sources.rows,
                          .begins = numbers(args.begins)};
  const auto warps = static_cast<unsigned>(parts);
  const std::size_t shared = static_cast<std::size_t>(experts) * sizeof(std::int32_t);
  const cudaStream_t stream = gpu.stream();
  count_kernel<<<warps, 32, shared, stream>>>(grouping);
  cuda_check_launch("count_kernel");
  add_parts_kernel<<<static_cast<unsigned>((experts + kAddWarps - 1) / kAddWarps), 32 * kAddWarps, 0, stream>>>(
      grouping);
  cuda_check_launch("add_parts_kernel");
  add_experts_kernel<<<1, kAddThreads, 0, stream>>>(grouping);
  cuda_check_launch("add_experts_kernel");
  place_kernel<<<warps, 32, shared, stream>>>(grouping);
  cuda_check_launch("place_kernel");
}

}  // namespace fp8lab::cuda
