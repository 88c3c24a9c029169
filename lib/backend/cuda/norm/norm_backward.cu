#include <type_traits>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/column_parts.h"
#include "backend/cuda/device/row_ring.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm/device/norm_rows.cuh"

namespace fp8lab::cuda {
namespace {

struct Backward {
  Elements grad_y;
  Elements x;
  Elements gamma;
  Elements grad_x;
  const float* mean;
  std::int64_t mean_stride;
  const float* rstd;
  std::int64_t rstd_stride;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t part_rows;
  float* gamma_sums;  ///< f32 [parts, cols]
  float* beta_sums;   ///< f32 [parts, cols], LayerNorm only
};

/// A thread's runs of a row of the ring: in registers or, for long rows, in shared memory.
template <DType Type, int Runs>
class RowInUse {
 public:
  static constexpr bool kKept = Runs <= 4;

  __device__ void begin(const std::byte* row, int cols) {
    row_ = row;
    if constexpr (kKept) kept_.read(row, cols);
  }
  __device__ void get(int r, int col, float (&values)[kSumRun]) const {
    if constexpr (kKept) return kept_.get(r, values);
    Vector<Type, kSumRun> run;
    run.load(reinterpret_cast<const typename Element<Type>::Storage*>(row_) + col);
    widen(run, values);
  }

 private:
  const std::byte* row_;
  KeptRow<Type, kKept ? Runs : 1> kept_;
};

/// Rows that a block processes at a time, behind one barrier: two while the registers hold both.
template <DType Type, int Runs>
constexpr int kRowsAtOnce = Runs * size_bytes(Type) <= 4 ? 2 : 1;

// A block processes one part of the rows, so that each thread adds up its columns' gradients of gamma and beta by
// itself. The ring loads the next rows while it works. Rows of many runs stay in shared memory, because the registers
// hold the sums.
template <bool Centred, DType Type, int Runs>
__global__ void __launch_bounds__(kSumThreads) norm_backward_kernel(const Backward args, int stages) {
  using InUse = RowInUse<Type, Runs>;
  constexpr int kSums = Centred ? 2 : 1;  // for each row its slope and, for LayerNorm, its offset
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ std::uint64_t full[kMostStages];
  __shared__ float shared[2][kRowsAtOnce<Type, Runs> * kSums][kSumWarps];  // sums of warps, in even and in odd steps
  const int cols = static_cast<int>(args.cols);
  const int row_bytes = cols * static_cast<int>(sizeof(typename Element<Type>::Storage));
  const float count = static_cast<float>(cols);
  const std::int64_t first = blockIdx.x * args.part_rows;
  const std::int64_t end = first + args.part_rows < args.rows ? first + args.part_rows : args.rows;
  const int height = static_cast<int>(end - first);
  const RowRing ring(slots, full, stages, 2 * row_bytes);
  ring.open();
  const auto fetch = [&](int index) {
    if (threadIdx.x != 0 || index >= height) return;
    const std::byte* const rows[2] = {row_of<Type>(args.x, first + index), row_of<Type>(args.grad_y, first + index)};
    ring.fetch(index, rows);
  };
  for (int index = 0; index < stages; ++index) fetch(index);

  float gamma[Runs][kSumRun];
  read_vector(args.gamma, cols, gamma);
  float grad_gamma[Runs][kSumRun] = {}, grad_beta[Centred ? Runs : 1][kSumRun] = {};
  constexpr int kRows = kRowsAtOnce<Type, Runs>;
  float next_mean[kRows] = {}, next_rstd[kRows] = {};
  const auto read_statistics = [&](int index) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (index + k >= height) return;
      if constexpr (Centred) next_mean[k] = args.mean[(first + index + k) * args.mean_stride];
      next_rstd[k] = args.rstd[(first + index + k) * args.rstd_stride];
    }
  };
  read_statistics(0);
  const auto process = [&]<int Rows>(std::integral_constant<int, Rows>, int index, float(*sums_of_warps)[kSumWarps]) {
    float mean[Rows], rstd[Rows];
    InUse x_runs[Rows], grad_runs[Rows];
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      mean[k] = next_mean[k];
      rstd[k] = next_rstd[k];
    }
    read_statistics(index + Rows);
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      const std::byte* const x_row = ring.wait(index + k);
      x_runs[k].begin(x_row, cols);
      grad_runs[k].begin(x_row + row_bytes, cols);
    }
    float partials[Rows * kSums][kSumRun] = {}, totals[Rows * kSums];
    for_runs<Runs>(cols, [&](int r, int col) {
#pragma unroll
      for (int k = 0; k < Rows; ++k) {
        float x[kSumRun], grad_y[kSumRun];
        x_runs[k].get(r, col, x);
        grad_runs[k].get(r, col, grad_y);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) {
          const float scaled = grad_y[j] * gamma[r][j];
          partials[k * kSums][j] += scaled * ((x[j] - mean[k]) * rstd[k]);
          if constexpr (Centred) partials[k * kSums + 1][j] += scaled;
        }
      }
    });
    join_block<Rows * kSums>(partials, sums_of_warps, totals);
    // All threads have passed this barrier, so none reads earlier rows in the ring any more, and none reads these if
    // they are in registers.
#pragma unroll
    for (int k = 0; k < Rows; ++k)
      if (const int free = InUse::kKept ? index + k : index + k - Rows; free >= 0) fetch(free + stages);
    for_runs<Runs>(cols, [&](int r, int col) {
#pragma unroll
      for (int k = 0; k < Rows; ++k) {
        const float slope = totals[k * kSums] / count, offset = Centred ? totals[k * kSums + kSums - 1] / count : 0.0f;
        float x[kSumRun], grad_y[kSumRun], grad_x[kSumRun];
        x_runs[k].get(r, col, x);
        grad_runs[k].get(r, col, grad_y);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) {
          const float xhat = (x[j] - mean[k]) * rstd[k];
          grad_x[j] = rstd[k] * (grad_y[j] * gamma[r][j] - offset - xhat * slope);
          grad_gamma[r][j] += grad_y[j] * xhat;
          if constexpr (Centred) grad_beta[r][j] += grad_y[j];
        }
        store_typed<Type, true>(grad_x, args.grad_x, first + index + k, col, kSumRun);
      }
    });
  };
  int index = 0, step = 0;
  for (; index + kRows <= height; index += kRows, ++step)
    process(std::integral_constant<int, kRows>{}, index, shared[step & 1]);
  if constexpr (kRows > 1)
    for (; index < height; ++index, ++step) process(std::integral_constant<int, 1>{}, index, shared[step & 1]);
  const auto store_sums = [&](float* sums, int col, const float(&values)[kSumRun]) {
    narrow<DType::kF32>(values).store(sums + blockIdx.x * args.cols + col);
  };
  for_runs<Runs>(cols, [&](int r, int col) {
    store_sums(args.gamma_sums, col, grad_gamma[r]);
    if constexpr (Centred) store_sums(args.beta_sums, col, grad_beta[r]);
  });
}

// The kernel for all layouts. A part's sums are accumulated in device memory; each element belongs to one thread.
template <bool Centred>
__global__ void __launch_bounds__(kSumThreads) norm_backward_any_kernel(const Backward args) {
  __shared__ float shared[2][2][kSumWarps];
  const std::int64_t cols = args.cols;
  const float count = static_cast<float>(cols);
  const std::int64_t first = blockIdx.x * args.part_rows;
  const std::int64_t end = first + args.part_rows < args.rows ? first + args.part_rows : args.rows;
  float* const gamma_sums = args.gamma_sums + blockIdx.x * cols;
  float* const beta_sums = args.beta_sums + blockIdx.x * cols;
  for_elements(cols, [&](std::int64_t col, int) {
    gamma_sums[col] = 0.0f;
    if constexpr (Centred) beta_sums[col] = 0.0f;
  });
  for (std::int64_t row = first; row < end; ++row) {
    const float mean = Centred ? args.mean[row * args.mean_stride] : 0.0f;
    const float rstd = args.rstd[row * args.rstd_stride];
    float offsets[kSumRun] = {}, slopes[kSumRun] = {};
    for_elements(cols, [&](std::int64_t col, int partial) {
      const float scaled = load_element(args.grad_y, row, col) * load_element(args.gamma, 0, col);
      if constexpr (Centred) offsets[partial] += scaled;
      slopes[partial] += scaled * ((load_element(args.x, row, col) - mean) * rstd);
    });
    const float offset = Centred ? join_block(offsets, shared[row & 1][0]) / count : 0.0f;
    const float slope = join_block(slopes, shared[row & 1][1]) / count;
    for_elements(cols, [&](std::int64_t col, int) {
      const float grad_y = load_element(args.grad_y, row, col);
      const float xhat = (load_element(args.x, row, col) - mean) * rstd;
      gamma_sums[col] += grad_y * xhat;
      if constexpr (Centred) beta_sums[col] += grad_y;
      store_element(rstd * (grad_y * load_element(args.gamma, 0, col) - offset - xhat * slope), args.grad_x, row, col);
    });
  }
}

/// Created once per GPU: allows the kernel its ring's shared memory.
template <bool Centred, DType Type, int Runs>
struct BackwardKernel {
  explicit BackwardKernel(CudaContext& context) {
    ring_blocks(reinterpret_cast<const void*>(norm_backward_kernel<Centred, Type, Runs>), kSumThreads,
                context.shared_bytes());
  }
};

template <bool Centred, DType Type, int Runs>
void launch_runs(const Backward& args, unsigned parts, CudaContext& context) {
  context.kept<BackwardKernel<Centred, Type, Runs>>();
  const std::size_t pair_bytes = 2 * static_cast<std::size_t>(args.cols) * size_bytes(Type);
  const int stages = ring_stages(pair_bytes, context.shared_bytes());
  norm_backward_kernel<Centred, Type, Runs>
      <<<parts, kSumThreads, stages * pair_bytes, context.stream()>>>(args, stages);
  cuda_check_launch("norm_backward_kernel");
}

template <bool Centred>
void launch_kept(const Backward& args, unsigned parts, CudaContext& context) {
  const bool wide = args.x.dtype == DType::kF32;
  if (args.cols <= 2 * kSumLanes)
    return wide ? launch_runs<Centred, DType::kF32, 2>(args, parts, context)
                : launch_runs<Centred, DType::kBF16, 2>(args, parts, context);
  if (args.cols <= 4 * kSumLanes)
    return wide ? launch_runs<Centred, DType::kF32, 4>(args, parts, context)
                : launch_runs<Centred, DType::kBF16, 4>(args, parts, context);
  launch_runs<Centred, DType::kBF16, 8>(args, parts, context);
}

template <bool Centred>
void launch(const Backward& args, unsigned parts, bool kept, CudaContext& context) {
  const std::size_t pair_bytes = 2 * static_cast<std::size_t>(args.cols) * size_bytes(args.x.dtype);
  const bool fits = (args.x.dtype == DType::kBF16 || (args.x.dtype == DType::kF32 && args.cols <= 4 * kSumLanes)) &&
                    ring_fits(pair_bytes, context.shared_bytes());
  if (kept && fits) return launch_kept<Centred>(args, parts, context);
  norm_backward_any_kernel<Centred><<<parts, kSumThreads, 0, context.stream()>>>(args);
  cuda_check_launch("norm_backward_any_kernel");
}

float* floats(const MatrixView& view) { return reinterpret_cast<float*>(view.data); }

}  // namespace

void norm_backward(const NormBackwardArgs& args, ExecContext& context) {
  const std::int64_t rows = args.x.rows, cols = args.x.cols;
  if (cols == 0) return;
  CudaContext& gpu = cuda_context(context);
  const bool centred = args.kind == NormKind::kLayerNorm;
  const std::int64_t parts = parts_of(rows);
  auto* const sums =
      reinterpret_cast<float*>(gpu.scratch(static_cast<std::size_t>((2 * parts + 1) * cols) * sizeof(float)));
  const Backward backward{.grad_y = elements(args.grad_y),
                          .x = elements(args.x),
                          .gamma = elements(args.gamma),
                          .grad_x = elements(args.grad_x),
                          .mean = floats(args.mean),
                          .mean_stride = args.mean.row_stride,
                          .rstd = floats(args.rstd),
                          .rstd_stride = args.rstd.row_stride,
                          .rows = rows,
                          .cols = cols,
                          .part_rows = rows_in_part(rows),
                          .gamma_sums = sums,
                          .beta_sums = sums + parts * cols};
  const bool kept = keeps_rows(args.x, gpu) && args.x.dtype == args.grad_x.dtype && args.x.dtype == args.grad_y.dtype &&
                    holds_runs(args.grad_y) && holds_runs(args.grad_x) && holds_runs(args.gamma);
  if (parts > 0)
    centred ? launch<true>(backward, static_cast<unsigned>(parts), kept, gpu)
            : launch<false>(backward, static_cast<unsigned>(parts), kept, gpu);
  add_parts(backward.gamma_sums, parts, args.grad_gamma, gpu);
  if (args.grad_beta.data != nullptr) add_parts(backward.beta_sums, parts, args.grad_beta, gpu);
}

}  // namespace fp8lab::cuda
