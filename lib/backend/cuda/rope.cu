#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/rope_table.h"

namespace fp8lab::cuda {
namespace {

struct Rotation {
  Elements in;
  Elements out;
  const float* cosine;
  const float* sine;
  std::int64_t rows;
  std::int64_t batch;
  int heads;
  int half;
  float sine_sign;
};

constexpr int kThreads = 256;

/// Divides in 32 bits, which is much shorter, where it can.
__device__ inline std::int64_t position(std::int64_t row, std::int64_t batch) {
  const bool narrow = ((row | batch) >> 32) == 0;
  return narrow ? static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(batch) : row / batch;
}

// A thread turns a run of pairs of one head. Both halves are read before either is written: `out` may be `in`.
template <int Width, int Type>
__global__ void __launch_bounds__(kThreads) rope_kernel(const Rotation args) {
  const int runs = (args.half + Width - 1) / Width;  // of a head
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= args.heads * runs) return;
  const int head = item / runs, pair = item % runs * Width;
  const std::int64_t low_col = static_cast<std::int64_t>(head) * 2 * args.half + pair, high_col = low_col + args.half;
  const std::int64_t count = args.half - pair;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < args.rows;
       row += row_step) {
    float low[Width], high[Width], cosine[Width], sine[Width], turned_low[Width], turned_high[Width];
    load_run<Type>(args.in, row, low_col, count, low);
    load_run<Type>(args.in, row, high_col, count, high);
    const std::int64_t at = position(row, args.batch) * args.half + pair;
    if constexpr (Width == kRunWidth) {
      load_whole<DType::kF32>(args.cosine + at, cosine);
      load_whole<DType::kF32>(args.sine + at, sine);
    } else {
      cosine[0] = args.cosine[at];
      sine[0] = args.sine[at];
    }
#pragma unroll
    for (int j = 0; j < Width; ++j) sine[j] *= args.sine_sign;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      turned_low[j] = low[j] * cosine[j] - high[j] * sine[j];
      turned_high[j] = high[j] * cosine[j] + low[j] * sine[j];
    }
    store_run<Type>(turned_low, args.out, row, low_col, count);
    store_run<Type>(turned_high, args.out, row, high_col, count);
  }
}

template <int Width, int Type>
void launch_rope(const Rotation& args, cudaStream_t stream) {
  constexpr std::int64_t kMostGridRows = 65535;
  const int items = args.heads * ((args.half + Width - 1) / Width);
  unsigned across = 1;
  while (across < kThreads && across < static_cast<unsigned>(items)) across *= 2;
  const dim3 block(across, kThreads / across);
  const std::int64_t row_groups = (args.rows + block.y - 1) / block.y;
  const dim3 grid((static_cast<unsigned>(items) + across - 1) / across,
                  static_cast<unsigned>(row_groups < kMostGridRows ? row_groups : kMostGridRows));
  rope_kernel<Width, Type><<<grid, block, 0, stream>>>(args);
  cuda_check_launch("rope_kernel");
}

}  // namespace

void rope(const RopeArgs& args, ExecContext& context) {
  if (args.in.numel() == 0) return;
  CudaContext& card = cuda_context(context);
  const std::int64_t head_dim = args.in.cols / args.heads;
  const std::int64_t positions = (args.in.rows + args.batch - 1) / args.batch;
  const RopeTable table = card.kept<RopeTables>().table(positions, head_dim, args.base);
  const Rotation rotation{.in = elements(args.in),
                          .out = elements(args.out),
                          .cosine = table.cosine,
                          .sine = table.sine,
                          .rows = args.in.rows,
                          .batch = args.batch,
                          .heads = static_cast<int>(args.heads),
                          .half = static_cast<int>(head_dim / 2),
                          .sine_sign = args.inverse ? -1.0f : 1.0f};
  const bool runs = rotation.half % kRunWidth == 0 && holds_runs(args.in) && holds_runs(args.out);
  if (!runs) return launch_rope<1, kRealTypes>(rotation, card.stream());
  if (args.in.dtype != args.out.dtype) return launch_rope<kRunWidth, kRealTypes>(rotation, card.stream());
  switch (args.in.dtype) {
    case DType::kF32: return launch_rope<kRunWidth, static_cast<int>(DType::kF32)>(rotation, card.stream());
    case DType::kBF16: return launch_rope<kRunWidth, static_cast<int>(DType::kBF16)>(rotation, card.stream());
    default: return launch_rope<kRunWidth, kRealTypes>(rotation, card.stream());
  }
}

}  // namespace fp8lab::cuda
