#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/map.cuh"
#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

struct Summands {
  Elements x;
  Elements target;  ///< data null: the terms are x itself
  std::int64_t numel;
  std::int64_t cols;
};

template <bool Squares>
__device__ double term(float x, float target) {
  if constexpr (!Squares) return static_cast<double>(x);
  const double difference = static_cast<double>(x) - static_cast<double>(target);
  return difference * difference;
}

/// A thread's run of terms, as stored, of a matrix that is one long row.
template <int Type>
struct StoredTerms {
  static constexpr int kWidth = kVectorWidth<Type>, kVectors = kSumRun / kWidth;
  Vector<Type> vectors[kVectors];

  __device__ void load(const Elements& from, std::int64_t at) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i].load(from.data, from.index(0, at + i * kWidth), from.dtype);
  }
  __device__ void get(const Elements& from, float (&values)[kSumRun]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float part[kWidth];
      widen(vectors[i], part, from.dtype);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[i * kWidth + j] = part[j];
    }
  }
};

// A block sums one part. `OneRow`: the matrices are one long row of wide runs.
template <bool OneRow, bool Squares, int Type>
__global__ void __launch_bounds__(kSumThreads) loss_part_kernel(const Summands args, double* sums) {
  __shared__ double shared[kSumThreads / 32];
  const std::int64_t first = blockIdx.x * kLossPart + threadIdx.x * kSumRun;
  const std::int64_t end = (blockIdx.x + 1) * kLossPart < args.numel ? (blockIdx.x + 1) * kLossPart : args.numel;
  double lanes[kSumRun] = {};
  std::int64_t i = first;
  if constexpr (OneRow) {
    constexpr int kUnroll = 4;
    for (; i + (kUnroll - 1) * kSumLanes + kSumRun <= end; i += kUnroll * kSumLanes) {
      StoredTerms<Type> stored_x[kUnroll], stored_target[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        stored_x[u].load(args.x, i + u * kSumLanes);
        if constexpr (Squares) stored_target[u].load(args.target, i + u * kSumLanes);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float x[kSumRun], target[kSumRun] = {};
        stored_x[u].get(args.x, x);
        if constexpr (Squares) stored_target[u].get(args.target, target);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) lanes[j] += term<Squares>(x[j], target[j]);
      }
    }
  }
#pragma unroll 1
  for (; i < end; i += kSumLanes)
#pragma unroll
    for (int j = 0; j < kSumRun; ++j) {
      if (i + j >= end) continue;
      const std::int64_t row = OneRow ? 0 : (i + j) / args.cols, col = OneRow ? i + j : (i + j) % args.cols;
      float x[1], target[1] = {};
      load_run<kRealTypes>(args.x, row, col, 1, x);
      if constexpr (Squares) load_run<kRealTypes>(args.target, row, col, 1, target);
      lanes[j] += term<Squares>(x[0], target[0]);
    }
  const double sum = join_warps<kSumThreads / 32>(join_warp(join_run(lanes)), shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    loss_total_kernel(const double* sums, std::int64_t parts, double divisor, float* loss) {
  __shared__ double shared[kSumThreads / 32];
  double lanes[kSumRun] = {};
  for (std::int64_t i = threadIdx.x * kSumRun; i < parts; i += kSumLanes)
#pragma unroll
    for (int j = 0; j < kSumRun; ++j)
      if (i + j < parts) lanes[j] += sums[i + j];
  const double sum = join_warps<kSumThreads / 32>(join_warp(join_run(lanes)), shared);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / divisor);
}

template <bool Squares>
void loss(const MatrixView& x, const MatrixView& target, double divisor, float* out, CudaContext& context) {
  const std::int64_t numel = x.numel(), parts = (numel + kLossPart - 1) / kLossPart;
  auto* const sums = reinterpret_cast<double*>(context.scratch(static_cast<std::size_t>(parts + 1) * sizeof(double)));
  if (parts > 0) {
    Summands args{.x = elements(x), .target = elements(target), .numel = numel, .cols = x.cols};
    const auto one_row = [](const MatrixView& view) {
      return view.contiguous() && reinterpret_cast<std::uintptr_t>(view.data) % 32 == 0;
    };
    const bool contiguous = one_row(x) && (!Squares || one_row(target));
    if (contiguous) args.x.col_stride = args.target.col_stride = 1;
    const auto grid = static_cast<unsigned>(parts);
    if (!contiguous)
      loss_part_kernel<false, Squares, kRealTypes><<<grid, kSumThreads, 0, context.stream()>>>(args, sums);
    else if (x.dtype == DType::kBF16 && (!Squares || target.dtype == DType::kBF16))
      loss_part_kernel<true, Squares, static_cast<int>(DType::kBF16)>
          <<<grid, kSumThreads, 0, context.stream()>>>(args, sums);
    else
      loss_part_kernel<true, Squares, kRealTypes><<<grid, kSumThreads, 0, context.stream()>>>(args, sums);
    cuda_check_launch("loss_part_kernel");
  }
  loss_total_kernel<<<1, kSumThreads, 0, context.stream()>>>(sums, parts, divisor, out);
  cuda_check_launch("loss_total_kernel");
}

struct MseGradient {
  const float* grad_loss;
  double numel;

  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
    const auto factor = static_cast<float>(2.0 * static_cast<double>(*grad_loss) / numel);
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = (in[0][j] - in[1][j]) * factor;
  }
};

}  // namespace

void sum_loss(const SumLossArgs& args, ExecContext& context) {
  loss<false>(args.x, {}, args.divisor, reinterpret_cast<float*>(args.loss.data), cuda_context(context));
}

void mse_loss(const MseLossArgs& args, ExecContext& context) {
  loss<true>(args.x, args.target, static_cast<double>(args.x.numel()), reinterpret_cast<float*>(args.loss.data),
             cuda_context(context));
}

void mse_loss_backward(const MseLossBackwardArgs& args, ExecContext& context) {
  const MseGradient op{.grad_loss = reinterpret_cast<const float*>(args.grad_loss.data),
                       .numel = static_cast<double>(args.x.numel())};
  map<2, 1>({args.x, args.target}, {args.grad_x}, op, cuda_context(context));
}

}  // namespace fp8lab::cuda
