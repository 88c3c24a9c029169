#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/experts/device/numbers.cuh"
#include "backend/cuda/kernels.h"

// Rows of tokens to rows of choices, and back. Bound by memory: threads move runs of a row, and a thread's loads are in
// flight together.
namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  ///< runs of a row that a thread has at once

/// Elements that a thread reads at once.
template <bool Wide>
inline constexpr int kWidth = Wide ? kRunWidth : 1;

/// Threads along a row of so many runs, and rows per block: short rows share a block.
dim3 block_of_runs(std::int64_t runs) {
  unsigned across = 8;
  while (across < kThreads && across * kUnroll < runs) across *= 2;
  return dim3(across, kThreads / across);
}
template <bool Wide>
dim3 block_of(std::int64_t cols) {
  return block_of_runs((cols + kWidth<Wide> - 1) / kWidth<Wide>);
}
unsigned blocks_of(std::int64_t rows, const dim3& block) {
  return static_cast<unsigned>((rows + block.y - 1) / block.y);
}
__device__ std::int64_t own_row() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }

/// Loads the runs that begin at columns col, col + step, ...; elements beyond the row are 0.
template <bool Wide, int Type>
__device__ __forceinline__ void load_runs(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t step,
                                          std::int64_t cols, float (&values)[kUnroll][kWidth<Wide>]) {
  if constexpr (Wide && Type >= 0) {
    if (col + (kUnroll - 1) * step + kRunWidth <= cols) {
      constexpr DType kType = static_cast<DType>(Type);
      using Storage = typename Element<kType>::Storage;
      const Storage* const x = from.at<const Storage>(row, 0);
      Vector<kType, kRunWidth> runs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) runs[u].load(x + col + u * step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) widen(runs[u], values[u]);
      return;
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) load_run<Type, Wide>(from, row, col + u * step, cols - col - u * step, values[u]);
}

template <bool Wide, int Type>
__device__ __forceinline__ void store_runs(const float (&values)[kUnroll][kWidth<Wide>], const Elements& to,
                                           std::int64_t row, std::int64_t col, std::int64_t step, std::int64_t cols) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) store_run<Type, Wide>(values[u], to, row, col + u * step, cols - col - u * step);
}

/// Rows that are moved as they are. Strides and columns count words.
struct Movement {
  const std::byte* in;
  std::int64_t in_row;
  std::int64_t in_col;
  std::byte* out;
  std::int64_t out_row;
  std::int64_t out_col;
  Numbers sources;
  std::uint32_t choices;
  std::int64_t rows;
  std::int64_t cols;
};

template <class Word>
__global__ void __launch_bounds__(kThreads) move_rows_kernel(const Movement args) {
  const std::int64_t row = own_row();
  if (row >= args.rows) return;
  const std::int32_t source = args.sources.at(row, 0);
  const std::uint32_t token = source < 0 ? 0 : static_cast<std::uint32_t>(source) / args.choices;
  const Word* const from = reinterpret_cast<const Word*>(args.in) + token * args.in_row;
  Word* const to = reinterpret_cast<Word*>(args.out) + row * args.out_row;
  const std::int64_t step = blockDim.x;
  for (std::int64_t col = threadIdx.x; col < args.cols; col += kUnroll * step) {
    Word words[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (source >= 0 && col + u * step < args.cols) words[u] = from[(col + u * step) * args.in_col];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (col + u * step < args.cols) to[(col + u * step) * args.out_col] = words[u];
  }
}

template <class Word>
void move_words(const Movement& args, cudaStream_t stream) {
  const dim3 block = block_of_runs(args.cols);
  move_rows_kernel<Word><<<blocks_of(args.rows, block), block, 0, stream>>>(args);
  cuda_check_launch("move_rows_kernel");
}

/// True if the rows of a matrix consist of words of 16 bytes.
bool holds_words(const MatrixView& view) {
  constexpr std::int64_t kWord = sizeof(uint4);
  const auto size = static_cast<std::int64_t>(size_bytes(view.dtype));
  return (view.cols == 1 || view.col_stride == 1) && view.cols * size % kWord == 0 &&
         (view.rows == 1 || view.row_stride * size % kWord == 0) &&
         reinterpret_cast<std::uintptr_t>(view.data) % kWord == 0;
}

void move_rows(const PermuteArgs& args, cudaStream_t stream) {
  Movement moved{.in = args.in.data,
                 .in_row = args.in.row_stride,
                 .in_col = args.in.col_stride,
                 .out = args.out.data,
                 .out_row = args.out.row_stride,
                 .out_col = args.out.col_stride,
                 .sources = numbers(args.sources),
                 .choices = static_cast<std::uint32_t>(args.choices),
                 .rows = args.out.rows,
                 .cols = args.out.cols};
  const auto size = static_cast<std::int64_t>(size_bytes(args.out.dtype));
  if (holds_words(args.in) && holds_words(args.out)) {
    const std::int64_t of_word = static_cast<std::int64_t>(sizeof(uint4)) / size;
    moved.in_row /= of_word;
    moved.out_row /= of_word;
    moved.cols /= of_word;
    moved.in_col = moved.out_col = 1;
    return move_words<uint4>(moved, stream);
  }
  switch (size) {
    case 1: return move_words<std::uint8_t>(moved, stream);
    case 2: return move_words<std::uint16_t>(moved, stream);
    case 4: return move_words<std::uint32_t>(moved, stream);
    default: return move_words<std::uint64_t>(moved, stream);
  }
}

struct Permutation {
  Elements in;
  Numbers sources;
  std::uint32_t choices;
  Floats weights;
  Elements out;
  std::int64_t rows;
  std::int64_t cols;
};

template <bool Wide, int Type>
__global__ void __launch_bounds__(kThreads) permute_kernel(const Permutation args) {
  const std::int64_t row = own_row();
  if (row >= args.rows) return;
  const std::int32_t source = args.sources.at(row, 0);
  const std::uint32_t token = source < 0 ? 0 : static_cast<std::uint32_t>(source) / args.choices;
  const float weight =
      source < 0 ? 0.0f : args.weights.at(token, static_cast<std::uint32_t>(source) - token * args.choices);
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kWidth<Wide>;
  for (std::int64_t col = threadIdx.x * kWidth<Wide>; col < args.cols; col += kUnroll * step) {
    float values[kUnroll][kWidth<Wide>] = {};
    if (source >= 0) {
      load_runs<Wide, Type>(args.in, token, col, step, args.cols, values);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int j = 0; j < kWidth<Wide>; ++j) values[u][j] *= weight;
    }
    store_runs<Wide, Type>(values, args.out, row, col, step, args.cols);
  }
}

struct Unpermutation {
  Elements in;
  Numbers rows;
  std::int64_t choices;
  Floats weights;  ///< data null: none
  Elements out;
  std::int64_t tokens;
  std::int64_t cols;
};

constexpr int kRowsAtOnce = 2;  ///< rows of a token that a thread loads at once

template <bool Wide, int Type>
__global__ void __launch_bounds__(kThreads) unpermute_kernel(const Unpermutation args) {
  const std::int64_t token = own_row();
  if (token >= args.tokens) return;
  const auto weight_of = [&](std::int64_t k) {
    return args.weights.data == nullptr ? 1.0f : args.weights.at(token, k);
  };
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kWidth<Wide>;
  for (std::int64_t col = threadIdx.x * kWidth<Wide>; col < args.cols; col += kUnroll * step) {
    float sums[kUnroll][kWidth<Wide>] = {};
    std::int64_t k = 0;
    if constexpr (Wide && Type >= 0) {
      constexpr DType kType = static_cast<DType>(Type);
      using Storage = typename Element<kType>::Storage;
      if (col + (kUnroll - 1) * step + kRunWidth <= args.cols)
        for (; k + kRowsAtOnce <= args.choices; k += kRowsAtOnce) {
          Vector<kType, kRunWidth> stored[kRowsAtOnce][kUnroll];
#pragma unroll
          for (int i = 0; i < kRowsAtOnce; ++i) {
            const Storage* const x = args.in.at<const Storage>(args.rows.at(token, k + i), 0) + col;
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) stored[i][u].load(x + u * step);
          }
#pragma unroll
          for (int i = 0; i < kRowsAtOnce; ++i) {
            const float weight = weight_of(k + i);
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
              float values[kRunWidth];
              widen(stored[i][u], values);
#pragma unroll
              for (int j = 0; j < kRunWidth; ++j) sums[u][j] += weight * values[j];
            }
          }
        }
    }
    for (; k < args.choices; ++k) {
      float values[kUnroll][kWidth<Wide>];
      load_runs<Wide, Type>(args.in, args.rows.at(token, k), col, step, args.cols, values);
      const float weight = weight_of(k);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int j = 0; j < kWidth<Wide>; ++j) sums[u][j] += weight * values[u][j];
    }
    store_runs<Wide, Type>(sums, args.out, token, col, step, args.cols);
  }
}

struct WeightGradient {
  Elements in;
  Numbers rows;
  std::int64_t choices;
  Elements grad_out;
  Floats grad_weights;
  std::int64_t cols;
};

/// A thread's partial sums, in the order of core/sum_order.h.
struct Products {
  float lanes[kRowsAtOnce][kSumRun] = {};

  __device__ void add(const float (&gradient)[kSumRun], const float (&values)[kRowsAtOnce][kSumRun]) {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) lanes[i][j] += gradient[j] * values[i][j];
  }
};

// A block has one token, and reads its gradient once for every two of its rows.
template <bool Wide, int Type>
__global__ void __launch_bounds__(kSumThreads) unpermute_weights_kernel(const WeightGradient args) {
  constexpr int kWarps = kSumThreads / 32;
  __shared__ float shared[kRowsAtOnce][kWarps];
  const std::int64_t token = blockIdx.x;
  for (std::int64_t k = 0; k < args.choices; k += kRowsAtOnce) {
    const bool both = k + 1 < args.choices;
    const std::int64_t rows[kRowsAtOnce] = {args.rows.at(token, k), args.rows.at(token, both ? k + 1 : k)};
    Products products;
    std::int64_t col = threadIdx.x * kSumRun;
    if constexpr (Wide && Type >= 0) {
      constexpr DType kType = static_cast<DType>(Type);
      using Storage = typename Element<kType>::Storage;
      for (; col + (kUnroll - 1) * kSumLanes + kSumRun <= args.cols; col += kUnroll * kSumLanes) {
        Vector<kType, kSumRun> gradients[kUnroll], stored[kUnroll][kRowsAtOnce];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          gradients[u].load(args.grad_out.at<const Storage>(token, 0) + col + u * kSumLanes);
#pragma unroll
          for (int i = 0; i < kRowsAtOnce; ++i)
            stored[u][i].load(args.in.at<const Storage>(rows[i], 0) + col + u * kSumLanes);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          float gradient[kSumRun], values[kRowsAtOnce][kSumRun];
          widen(gradients[u], gradient);
#pragma unroll
          for (int i = 0; i < kRowsAtOnce; ++i) widen(stored[u][i], values[i]);
          products.add(gradient, values);
        }
      }
    }
#pragma unroll 1
    for (; col < args.cols; col += kSumLanes) {
      float gradient[kSumRun], values[kRowsAtOnce][kSumRun];
      load_run<Type, Wide>(args.grad_out, token, col, args.cols - col, gradient);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) load_run<Type, Wide>(args.in, rows[i], col, args.cols - col, values[i]);
      products.add(gradient, values);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const float sum = join_warps<kWarps>(join_warp(join_run(products.lanes[i])), shared[i]);
      if (threadIdx.x == 0 && (i == 0 || both)) args.grad_weights.at(token, k + i) = sum;
    }
    __syncthreads();  // `shared` is used again
  }
}

/// Calls launch<Wide, Type>() for two matrices.
template <class Launch>
void dispatch(const MatrixView& a, const MatrixView& b, const Launch& launch) {
  if (!holds_runs(a) || !holds_runs(b)) return launch.template operator()<false, kRealTypes>();
  if (a.dtype == b.dtype && a.dtype == DType::kBF16)
    return launch.template operator()<true, static_cast<int>(DType::kBF16)>();
  if (a.dtype == b.dtype && a.dtype == DType::kF32)
    return launch.template operator()<true, static_cast<int>(DType::kF32)>();
  launch.template operator()<true, kRealTypes>();
}

}  // namespace

void permute(const PermuteArgs& args, ExecContext& context) {
  if (args.out.numel() == 0) return;
  const cudaStream_t stream = cuda_context(context).stream();
  if (args.weights.data == nullptr) return move_rows(args, stream);
  const Permutation permutation{.in = elements(args.in),
                                .sources = numbers(args.sources),
                                .choices = static_cast<std::uint32_t>(args.choices),
                                .weights = floats(args.weights),
                                .out = elements(args.out),
                                .rows = args.out.rows,
                                .cols = args.out.cols};
  dispatch(args.in, args.out, [&]<bool Wide, int Type>() {
    const dim3 block = block_of<Wide>(permutation.cols);
    permute_kernel<Wide, Type><<<blocks_of(permutation.rows, block), block, 0, stream>>>(permutation);
  });
  cuda_check_launch("permute_kernel");
}

void unpermute(const UnpermuteArgs& args, ExecContext& context) {
  if (args.out.numel() == 0) return;
  const Unpermutation permutation{.in = elements(args.in),
                                  .rows = numbers(args.rows),
                                  .choices = args.rows.cols,
                                  .weights = floats(args.weights),
                                  .out = elements(args.out),
                                  .tokens = args.out.rows,
                                  .cols = args.out.cols};
  const cudaStream_t stream = cuda_context(context).stream();
  dispatch(args.in, args.out, [&]<bool Wide, int Type>() {
    const dim3 block = block_of<Wide>(permutation.cols);
    unpermute_kernel<Wide, Type><<<blocks_of(permutation.tokens, block), block, 0, stream>>>(permutation);
  });
  cuda_check_launch("unpermute_kernel");
}

void unpermute_weights(const UnpermuteWeightsArgs& args, ExecContext& context) {
  if (args.grad_out.rows == 0) return;
  const WeightGradient gradient{.in = elements(args.in),
                                .rows = numbers(args.rows),
                                .choices = args.rows.cols,
                                .grad_out = elements(args.grad_out),
                                .grad_weights = floats(args.grad_weights),
                                .cols = args.in.cols};
  const cudaStream_t stream = cuda_context(context).stream();
  dispatch(args.in, args.grad_out, [&]<bool Wide, int Type>() {
    unpermute_weights_kernel<Wide, Type>
        <<<static_cast<unsigned>(args.grad_out.rows), kSumThreads, 0, stream>>>(gradient);
  });
  cuda_check_launch("unpermute_weights_kernel");
}

}  // namespace fp8lab::cuda
