#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/map.cuh"
#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

struct Summands {
  Elements x;
  Elements target;  ///< data null: x itself is summed
  std::int64_t numel;
  std::int64_t cols;
};

template <bool Squares>
__device__ double term(float x, float target) {
  if constexpr (!Squares) return static_cast<double>(x);
  const double difference = static_cast<double>(x) - static_cast<double>(target);
  return difference * difference;
}

// A block sums one part. Width 8: the matrices are one long row.
template <int Width, bool Squares>
__global__ void __launch_bounds__(kSumThreads) loss_part_kernel(const Summands args, double* sums) {
  __shared__ double shared[kSumThreads / 32];
  const std::int64_t first = blockIdx.x * kLossPart + threadIdx.x * kSumRun;
  const std::int64_t end = (blockIdx.x + 1) * kLossPart < args.numel ? (blockIdx.x + 1) * kLossPart : args.numel;
  double lanes[kSumRun] = {};
#pragma unroll 4
  for (std::int64_t i = first; i < end; i += kSumLanes) {
    float x[kSumRun] = {}, target[kSumRun] = {};
    if constexpr (Width == kRunWidth) {
      load_run<kRealTypes>(args.x, 0, i, end - i, x);
      if constexpr (Squares) load_run<kRealTypes>(args.target, 0, i, end - i, target);
    } else {
      for (int j = 0; j < kSumRun && i + j < end; ++j) {
        float one[1];
        load_run<kRealTypes>(args.x, (i + j) / args.cols, (i + j) % args.cols, 1, one);
        x[j] = one[0];
        if constexpr (Squares) {
          load_run<kRealTypes>(args.target, (i + j) / args.cols, (i + j) % args.cols, 1, one);
          target[j] = one[0];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kSumRun; ++j)
      if (i + j < end) lanes[j] += term<Squares>(x[j], target[j]);
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
void loss(const MatrixView& x, const MatrixView& target, double divisor, float* out, CudaContext& card) {
  const std::int64_t numel = x.numel(), parts = (numel + kLossPart - 1) / kLossPart;
  auto* const sums = reinterpret_cast<double*>(card.scratch(static_cast<std::size_t>(parts + 1) * sizeof(double)));
  if (parts > 0) {
    Summands args{.x = elements(x), .target = elements(target), .numel = numel, .cols = x.cols};
    const auto one_row = [](const MatrixView& view) {
      return view.contiguous() && reinterpret_cast<std::uintptr_t>(view.data) % 32 == 0;
    };
    if (one_row(x) && (!Squares || one_row(target))) {
      args.x.col_stride = args.target.col_stride = 1;
      loss_part_kernel<kRunWidth, Squares><<<static_cast<unsigned>(parts), kSumThreads, 0, card.stream()>>>(args, sums);
    } else {
      loss_part_kernel<1, Squares><<<static_cast<unsigned>(parts), kSumThreads, 0, card.stream()>>>(args, sums);
    }
    cuda_check_launch("loss_part_kernel");
  }
  loss_total_kernel<<<1, kSumThreads, 0, card.stream()>>>(sums, parts, divisor, out);
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
  loss<false>(args.x, {}, 1.0, reinterpret_cast<float*>(args.loss.data), cuda_context(context));
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
