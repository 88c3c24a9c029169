#include "backend/cuda/device/map.cuh"
#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/kernels.h"
#include "core/elementary.h"

namespace fp8lab::cuda {
namespace {

constexpr int kWarps = kSumThreads / 32;

/// A thread's partial sums of a row, in the order of core/sum_order.h.
class RunOfExponentials {
 public:
  /// Adds a term to each partial sum. A factor of 1 changes nothing, so it is left out. A NaN among the terms makes the
  /// maximum NaN, and with it the factor and all sums.
  __device__ void add(const float (&x)[kSumRun]) {
    float maximum = maximum_;
#pragma unroll
    for (int j = 0; j < kSumRun; ++j) maximum = detail::at_least(x[j], maximum);
    if (maximum != maximum_) {
      const float factor = exponential(maximum_ - maximum);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) partials_[j] *= factor;
      maximum_ = maximum;
    }
#pragma unroll
    for (int j = 0; j < kSumRun; ++j) partials_[j] += exponential_term(x[j] - maximum);
  }
  __device__ ExponentialSum sum() const { return {.maximum = maximum_, .sum = join_run(partials_)}; }

 private:
  float partials_[kSumRun] = {};
  float maximum_ = kLowestFloat;
};

__device__ ExponentialSum other_lane(const ExponentialSum& sum, int distance) {
  return {.maximum = __shfl_xor_sync(0xFFFFFFFFu, sum.maximum, distance),
          .sum = __shfl_xor_sync(0xFFFFFFFFu, sum.sum, distance)};
}

/// The sum over the block, in thread 0.
__device__ ExponentialSum join_block(ExponentialSum sum, ExponentialSum (&shared)[kWarps]) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum = joined(sum, other_lane(sum, distance));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return sum;
#pragma unroll
  for (int distance = 1; distance < kWarps; distance *= 2)
#pragma unroll
    for (int warp = 0; warp + distance < kWarps; warp += 2 * distance)
      shared[warp] = joined(shared[warp], shared[warp + distance]);
  return shared[0];
}

struct Rows {
  Elements logits;
  std::int64_t cols;
  const std::int32_t* targets;
  std::int64_t target_stride;
  float* losses;
  std::int64_t loss_stride;
  float* log_sums;
  std::int64_t log_sum_stride;
};

// A block reads one row, once. The loads of several runs are in flight before the first is added. `Wide`: rows hold
// wide runs (holds_runs()).
template <bool Wide, int Type>
__global__ void __launch_bounds__(kSumThreads) cross_entropy_kernel(const Rows args) {
  __shared__ ExponentialSum shared[kWarps];
  const std::int64_t row = blockIdx.x;
  RunOfExponentials sums;
  std::int64_t col = threadIdx.x * kSumRun;
  if constexpr (Wide && Type >= 0) {
    constexpr int kUnroll = 4;
    constexpr DType kType = static_cast<DType>(Type);
    using Storage = typename Element<kType>::Storage;
    const Storage* const x = args.logits.at<const Storage>(row, 0);
    for (; col + (kUnroll - 1) * kSumLanes + kSumRun <= args.cols; col += kUnroll * kSumLanes) {
      Vector<kType, kSumRun> runs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) runs[u].load(x + col + u * kSumLanes);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float values[kSumRun];
        widen(runs[u], values);
        sums.add(values);
      }
    }
  }
#pragma unroll 1
  for (; col < args.cols; col += kSumLanes) {
    float values[kSumRun];
    load_run<Type, Wide>(args.logits, row, col, args.cols - col, values);
#pragma unroll
    for (int j = 0; j < kSumRun; ++j)
      if (col + j >= args.cols) values[j] = float_from_bits(0xFF800000u);
    sums.add(values);
  }
  const ExponentialSum sum = join_block(sums.sum(), shared);
  if (threadIdx.x != 0) return;
  float target[1];
  load_run<Type, false>(args.logits, row, args.targets[row * args.target_stride], 1, target);
  args.losses[row * args.loss_stride] = sum.loss_of(target[0]);
  args.log_sums[row * args.log_sum_stride] = sum.log_sum();
}

template <bool Wide, int Type>
void launch(const Rows& args, std::int64_t rows, CudaContext& context) {
  cross_entropy_kernel<Wide, Type><<<static_cast<unsigned>(rows), kSumThreads, 0, context.stream()>>>(args);
  cuda_check_launch("cross_entropy_kernel");
}

/// The gradient of a run of logits. `flat`: the matrix is one long row, and a run may reach over several of its rows.
struct LogitsGradient {
  const float* log_sums;
  std::int64_t log_sum_stride;
  const std::int32_t* targets;
  std::int64_t target_stride;
  const float* grad_loss;
  std::int64_t rows;
  std::int64_t cols;
  bool flat;

  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t row,
                             std::int64_t col) const {
    // Read as a constant, so that a thread divides once for all of its runs.
    const auto factor = static_cast<float>(static_cast<double>(__ldg(grad_loss)) / static_cast<double>(rows));
    if (flat) {
      row = col / cols;
      col -= row * cols;
    }
    for (int j = 0; j < Width; row += 1, col = 0) {
      // Elements beyond the last row are not stored.
      const bool inside = row < rows;
      const float log_sum = inside ? log_sums[row * log_sum_stride] : 0.0f;
      const std::int64_t target = inside ? targets[row * target_stride] - col + j : -1;
      const std::int64_t end = j + cols - col;
      if (j == 0 && end >= Width) return part<Width>(in[0], out[0], 0, Width, log_sum, target, factor);
      const int stop = end < Width ? static_cast<int>(end) : Width;
      part<Width>(in[0], out[0], j, stop, log_sum, target, factor);
      j = stop;
    }
  }

 private:
  /// Elements `begin` to `end` of a run, which belong to one row; `target` is relative to the run.
  template <int Width>
  __device__ static void part(const float (&in)[Width], float (&out)[Width], int begin, int end, float log_sum,
                              std::int64_t target, float factor) {
    const int at = target >= 0 && target < Width ? static_cast<int>(target) : -1;
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (j >= begin && j < end) {
        const float term = exponential(in[j] - log_sum);
        out[j] = (j == at ? term - 1.0f : term) * factor;
      }
  }
};

const std::int32_t* tokens(const MatrixView& view) { return reinterpret_cast<const std::int32_t*>(view.data); }
float* floats(const MatrixView& view) { return reinterpret_cast<float*>(view.data); }

}  // namespace

void cross_entropy_forward(const CrossEntropyForwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const MatrixView& logits = args.logits;
  if (logits.numel() == 0) return;
  const Rows rows{.logits = elements(logits),
                  .cols = logits.cols,
                  .targets = tokens(args.targets),
                  .target_stride = args.targets.row_stride,
                  .losses = floats(args.losses),
                  .loss_stride = args.losses.row_stride,
                  .log_sums = floats(args.log_sums),
                  .log_sum_stride = args.log_sums.row_stride};
  if (!holds_runs(logits)) return launch<false, kRealTypes>(rows, logits.rows, gpu);
  switch (logits.dtype) {
    case DType::kBF16: return launch<true, static_cast<int>(DType::kBF16)>(rows, logits.rows, gpu);
    case DType::kF32: return launch<true, static_cast<int>(DType::kF32)>(rows, logits.rows, gpu);
    default: return launch<true, kRealTypes>(rows, logits.rows, gpu);
  }
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, ExecContext& context) {
  // Rows whose runs are wide need no division to find a run's row.
  const bool flat = args.logits.contiguous() && args.grad_logits.contiguous() &&
                    !(holds_runs(args.logits) && holds_runs(args.grad_logits));
  const LogitsGradient op{.log_sums = floats(args.log_sums),
                          .log_sum_stride = args.log_sums.row_stride,
                          .targets = tokens(args.targets),
                          .target_stride = args.targets.row_stride,
                          .grad_loss = floats(args.grad_loss),
                          .rows = args.logits.rows,
                          .cols = args.logits.cols,
                          .flat = flat};
  map<1, 1>({args.logits}, {args.grad_logits}, op, cuda_context(context), flat);
}

}  // namespace fp8lab::cuda
