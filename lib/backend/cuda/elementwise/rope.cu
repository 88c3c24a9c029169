#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/elementwise/rope_table.h"
#include "backend/cuda/kernels.h"

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

/// row / batch; a 32-bit division, which is much shorter, if both fit.
__device__ inline std::int64_t position(std::int64_t row, std::int64_t batch) {
  const bool narrow = ((row | batch) >> 32) == 0;
  return narrow ? static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(batch) : row / batch;
}

template <int Width>
struct Rotated {
  float low[Width];
  float high[Width];
};

template <int Width>
__device__ inline Rotated<Width> rotate(const Rotation& args, std::int64_t row, int pair, const float (&low)[Width],
                                        const float (&high)[Width]) {
  const std::int64_t at = position(row, args.batch) * args.half + pair;
  float cosine[Width], sine[Width];
  if constexpr (Width == 1) {
    cosine[0] = args.cosine[at];
    sine[0] = args.sine[at];
  } else {
#pragma unroll
    for (int j = 0; j < Width; j += 4) {
      const float4 cosines = *reinterpret_cast<const float4*>(args.cosine + at + j);
      const float4 sines = *reinterpret_cast<const float4*>(args.sine + at + j);
      cosine[j] = cosines.x, cosine[j + 1] = cosines.y, cosine[j + 2] = cosines.z, cosine[j + 3] = cosines.w;
      sine[j] = sines.x, sine[j + 1] = sines.y, sine[j + 2] = sines.z, sine[j + 3] = sines.w;
    }
  }
  Rotated<Width> rotated;
#pragma unroll
  for (int j = 0; j < Width; ++j) {
    const float signed_sine = args.sine_sign * sine[j];
    rotated.low[j] = low[j] * cosine[j] - high[j] * signed_sine;
    rotated.high[j] = high[j] * cosine[j] + low[j] * signed_sine;
  }
  return rotated;
}

// A thread rotates a run of pairs of one head. Both members of a pair are read before either is written, so `out` may
// be `in`.
template <bool Runs, int Type>
__global__ void __launch_bounds__(kThreads) rope_kernel(const Rotation args) {
  constexpr int kWidth = Runs ? kVectorWidth<Type> : 1;
  const int runs = args.half / kWidth;  // runs per head
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= args.heads * runs) return;
  const int head = item / runs, pair = item % runs * kWidth;
  const std::int64_t low_col = static_cast<std::int64_t>(head) * 2 * args.half + pair, high_col = low_col + args.half;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < args.rows;
       row += row_step) {
    float low[kWidth], high[kWidth];
    if constexpr (Runs) {
      Vector<Type> stored_low, stored_high;
      stored_low.load(args.in.data, args.in.index(row, low_col), args.in.dtype);
      stored_high.load(args.in.data, args.in.index(row, high_col), args.in.dtype);
      widen(stored_low, low, args.in.dtype);
      widen(stored_high, high, args.in.dtype);
      const Rotated<kWidth> rotated = rotate(args, row, pair, low, high);
      store_vector<Type>(rotated.low, args.out, row, low_col);
      store_vector<Type>(rotated.high, args.out, row, high_col);
    } else {
      load_run<Type>(args.in, row, low_col, 1, low);
      load_run<Type>(args.in, row, high_col, 1, high);
      const Rotated<kWidth> rotated = rotate(args, row, pair, low, high);
      store_run<Type>(rotated.low, args.out, row, low_col, 1);
      store_run<Type>(rotated.high, args.out, row, high_col, 1);
    }
  }
}

template <bool Runs, int Type>
void launch_rope(const Rotation& args, cudaStream_t stream) {
  constexpr std::int64_t kMostGridRows = 65535;
  const int items = args.heads * (args.half / (Runs ? kVectorWidth<Type> : 1));
  unsigned across = 1;
  while (across < kThreads && across < static_cast<unsigned>(items)) across *= 2;
  const dim3 block(across, kThreads / across);
  const std::int64_t row_groups = (args.rows + block.y - 1) / block.y;
  const dim3 grid((static_cast<unsigned>(items) + across - 1) / across,
                  static_cast<unsigned>(row_groups < kMostGridRows ? row_groups : kMostGridRows));
  rope_kernel<Runs, Type><<<grid, block, 0, stream>>>(args);
  cuda_check_launch("rope_kernel");
}

}  // namespace

void rope(const RopeArgs& args, ExecContext& context) {
  if (args.in.numel() == 0) return;
  CudaContext& gpu = cuda_context(context);
  const std::int64_t head_dim = args.in.cols / args.heads;
  const std::int64_t positions = args.first_position + (args.in.rows + args.batch - 1) / args.batch;
  const RopeTable table = gpu.kept<RopeTables>().table(positions, head_dim, args.base);
  const Rotation rotation{.in = elements(args.in),
                          .out = elements(args.out),
                          .cosine = table.cosine + args.first_position * (head_dim / 2),
                          .sine = table.sine + args.first_position * (head_dim / 2),
                          .rows = args.in.rows,
                          .batch = args.batch,
                          .heads = static_cast<int>(args.heads),
                          .half = static_cast<int>(head_dim / 2),
                          .sine_sign = args.inverse ? -1.0f : 1.0f};
  const bool runs = rotation.half % kRunWidth == 0 && holds_runs(args.in) && holds_runs(args.out);
  if (!runs) return launch_rope<false, kRealTypes>(rotation, gpu.stream());
  if (args.in.dtype == DType::kBF16 && args.out.dtype == DType::kBF16)
    return launch_rope<true, static_cast<int>(DType::kBF16)>(rotation, gpu.stream());
  launch_rope<true, kRealTypes>(rotation, gpu.stream());
}

}  // namespace fp8lab::cuda
