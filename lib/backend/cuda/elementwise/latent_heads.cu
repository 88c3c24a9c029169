#include <algorithm>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/elementwise/rope_table.h"
#include "backend/cuda/kernels.h"

// Bit for bit the `cpu` kernels: elements are copied or rotated in FP32 by the same table.
namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kBase = 10000.0;
constexpr auto kBF16 = static_cast<int>(DType::kBF16);

struct LatentCall {
  Elements q, kv, k_rope, packed;
  const float* cosine;
  const float* sine;
  std::int64_t rows, batch;
  int heads, plain, half,
      value;  ///< per head: plain columns of a key, its rotated pairs, columns of a value

  __host__ __device__ int key() const { return plain + 2 * half; }
  __device__ std::int64_t q_column(int head) const { return std::int64_t{head} * key(); }
  __device__ std::int64_t k_column(int head) const { return std::int64_t{heads + head} * key(); }
  __device__ std::int64_t v_column(int head) const {
    return 2 * std::int64_t{heads} * key() + std::int64_t{head} * value;
  }
  __device__ std::int64_t kv_column(int head) const { return std::int64_t{head} * (plain + value); }
};

/// Runs of `Width` columns, read and written in one type, or in the types of the matrices.
template <int Type, int Width>
struct Mover {
  static constexpr bool kWide = Width == kRunWidth;
  const LatentCall& call;
  std::int64_t row;

  __device__ void copy(const Elements& from, std::int64_t from_col, const Elements& to, std::int64_t to_col) const {
    float values[Width];
    load_run<Type, kWide>(from, row, from_col, Width, values);
    store_run<Type, kWide>(values, to, row, to_col, Width);
  }
  /// Rotates the pairs from `pair` on in place; `sign` -1 rotates back.
  __device__ void rotate(float (&low)[Width], float (&high)[Width], int pair, float sign) const {
    const std::int64_t at = row / call.batch * call.half + pair;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      const float cosine = call.cosine[at + j], sine = sign * call.sine[at + j], first = low[j];
      low[j] = first * cosine - high[j] * sine;
      high[j] = high[j] * cosine + first * sine;
    }
  }
  __device__ void load_pairs(const Elements& from, std::int64_t col, float (&low)[Width], float (&high)[Width]) const {
    load_run<Type, kWide>(from, row, col, Width, low);
    load_run<Type, kWide>(from, row, col + call.half, Width, high);
  }
  __device__ void store_pairs(const float (&low)[Width], const float (&high)[Width], const Elements& to,
                              std::int64_t col) const {
    store_run<Type, kWide>(low, to, row, col, Width);
    store_run<Type, kWide>(high, to, row, col + call.half, Width);
  }
};

/// A thread moves one run of one head: of the plain columns of Q or K, of a value, or of the pairs of Q or K. Backward
/// writes no gradient of k_rope.
template <int Type, int Width, bool Backward>
__global__ void __launch_bounds__(kThreads) latent_heads_kernel(const __grid_constant__ LatentCall call) {
  const int plain = call.plain / Width, values = call.value / Width, pairs = call.half / Width;
  const int runs = 2 * plain + values + (Backward ? 1 : 2) * pairs;
  const int item = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (item >= call.heads * runs) return;
  const int head = item / runs;
  int run = item % runs;
  const std::int64_t q = call.q_column(head), k = call.k_column(head), v = call.v_column(head),
                     kv = call.kv_column(head);
  for (std::int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
    const Mover<Type, Width> move{call, row};
    const auto pass = [&](const Elements& part, std::int64_t col, std::int64_t packed_col) {
      if constexpr (Backward)
        move.copy(call.packed, packed_col, part, col);
      else
        move.copy(part, col, call.packed, packed_col);
    };
    int at = run;
    if (at < plain) {
      pass(call.q, q + at * Width, q + at * Width);
      continue;
    }
    if ((at -= plain) < plain) {
      pass(call.kv, kv + at * Width, k + at * Width);
      continue;
    }
    if ((at -= plain) < values) {
      pass(call.kv, kv + call.plain + at * Width, v + at * Width);
      continue;
    }
    at -= values;
    const bool of_key = at >= pairs;
    const int pair = (of_key ? at - pairs : at) * Width;
    const Elements& from = Backward ? call.packed : of_key ? call.k_rope : call.q;
    const std::int64_t q_pairs = q + call.plain + pair;
    float low[Width], high[Width];
    move.load_pairs(from, of_key ? pair : q_pairs, low, high);
    move.rotate(low, high, pair, Backward ? -1.0f : 1.0f);
    move.store_pairs(low, high, Backward ? call.q : call.packed, of_key ? k + call.plain + pair : q_pairs);
  }
}

/// A thread adds up a run of pairs of k_rope's gradient over the heads.
template <int Type, int Width>
__global__ void __launch_bounds__(kThreads) latent_rope_gradient_kernel(const __grid_constant__ LatentCall call) {
  const int runs = call.half / Width;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= call.rows * runs) return;
  const Mover<Type, Width> move{call, item / runs};
  const int pair = static_cast<int>(item % runs) * Width;
  float low[Width] = {}, high[Width] = {};
  for (int head = 0; head < call.heads; ++head) {
    float more_low[Width], more_high[Width];
    move.load_pairs(call.packed, call.k_column(head) + call.plain + pair, more_low, more_high);
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      low[j] += more_low[j];
      high[j] += more_high[j];
    }
  }
  move.rotate(low, high, pair, -1.0f);
  move.store_pairs(low, high, call.k_rope, pair);
}

LatentCall describe(const LatentHeadsArgs& args, CudaContext& context) {
  const std::int64_t rope = args.k_rope.cols, key = args.q.cols / args.heads, plain = key - rope;
  const RopeTable table =
      context.kept<RopeTables>().table((args.packed.rows + args.batch - 1) / args.batch, rope, kBase);
  return {.q = elements(args.q),
          .kv = elements(args.kv),
          .k_rope = elements(args.k_rope),
          .packed = elements(args.packed),
          .cosine = table.cosine,
          .sine = table.sine,
          .rows = args.packed.rows,
          .batch = args.batch,
          .heads = static_cast<int>(args.heads),
          .plain = static_cast<int>(plain),
          .half = static_cast<int>(rope / 2),
          .value = static_cast<int>(args.kv.cols / args.heads - plain)};
}

template <int Type, int Width, bool Backward>
void launch(const LatentCall& call, CudaContext& context) {
  constexpr std::int64_t kMostGridRows = 65535;
  const int items = call.heads * (2 * call.plain + call.value + (Backward ? 1 : 2) * call.half) / Width;
  const dim3 grid(static_cast<unsigned>((items + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min(call.rows, kMostGridRows)));
  latent_heads_kernel<Type, Width, Backward><<<grid, kThreads, 0, context.stream()>>>(call);
  cuda_check_launch("latent_heads_kernel");
  if constexpr (Backward) {
    const std::int64_t threads = call.rows * (call.half / Width);
    latent_rope_gradient_kernel<Type, Width>
        <<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, context.stream()>>>(call);
    cuda_check_launch("latent_rope_gradient_kernel");
  }
}

template <bool Backward>
void launch(const LatentHeadsArgs& args, ExecContext& context) {
  if (args.packed.rows == 0) return;
  CudaContext& gpu = cuda_context(context);
  const LatentCall call = describe(args, gpu);
  bool wide = call.plain % kRunWidth == 0 && call.half % kRunWidth == 0 && call.value % kRunWidth == 0, bf16 = true;
  for (const MatrixView* view : {&args.q, &args.kv, &args.k_rope, &args.packed}) {
    wide = wide && holds_runs(*view);
    bf16 = bf16 && view->dtype == DType::kBF16;
  }
  if (!wide) return launch<kRealTypes, 1, Backward>(call, gpu);
  bf16 ? launch<kBF16, kRunWidth, Backward>(call, gpu) : launch<kRealTypes, kRunWidth, Backward>(call, gpu);
}

}  // namespace

void latent_heads(const LatentHeadsArgs& args, ExecContext& context) { launch<false>(args, context); }
void latent_heads_backward(const LatentHeadsBackwardArgs& args, ExecContext& context) {
  launch<true>(args.of, context);
}

}  // namespace fp8lab::cuda
