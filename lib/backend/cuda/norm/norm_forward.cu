#include "backend/cuda/kernels.h"
#include "backend/cuda/norm/device/norm_kernel.cuh"
#include "backend/cuda/norm/device/norm_rows.cuh"
#include "backend/cuda/quantize/device/measured_rows.cuh"

namespace fp8lab::cuda {
namespace {

template <bool Centred>
__global__ void __launch_bounds__(kSumThreads) norm_any_kernel(const NormTask task, const Elements y) {
  __shared__ float shared[2][kSumWarps];
  const std::int64_t row = blockIdx.x;
  const float count = static_cast<float>(task.cols);
  const Elements x_rows = elements(task.x), gamma = elements(task.gamma), beta = elements(task.beta);
  float mean = 0.0f;
  if constexpr (Centred) {
    float partials[kSumRun] = {};
    for_elements(task.cols,
                 [&](std::int64_t col, int partial) { partials[partial] += load_element(x_rows, row, col); });
    mean = join_block(partials, shared[0]) / count;
  }
  float partials[kSumRun] = {};
  for_elements(task.cols, [&](std::int64_t col, int partial) {
    const float x = load_element(x_rows, row, col);
    partials[partial] += (x - mean) * (x - mean);
  });
  const float variance = join_block(partials, shared[1]) / count;
  const float rstd = 1.0f / sqrtf(variance + task.epsilon);
  for_elements(task.cols, [&](std::int64_t col, int) {
    float value = (load_element(x_rows, row, col) - mean) * rstd * load_element(gamma, 0, col);
    if constexpr (Centred)
      if (beta.data != nullptr) value += load_element(beta, 0, col);
    store_element(value, y, row, col);
  });
  if (threadIdx.x == 0) {
    if constexpr (Centred) task.mean[row * task.mean_stride] = mean;
    task.rstd[row * task.rstd_stride] = rstd;
  }
}

template <bool Centred>
void norm(const NormForwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const NormTask task = norm_task(args);
  const MatrixView& y = args.y;
  const bool kept = warps_keep_rows(task.x, Centred, gpu) && y.dtype == task.x.dtype && holds_runs(y) &&
                    holds_runs(task.gamma) && (!Centred || holds_runs(task.beta));
  if (kept && y.dtype == DType::kBF16 && args.amax != nullptr)
    return launch_norm<Centred, DType::kBF16>(task, MeasuredRows(elements(y), FreshAmax(args.amax, gpu)), gpu);
  if (kept && y.dtype == DType::kBF16) {
    launch_norm<Centred, DType::kBF16>(task, StoredRows<DType::kBF16>{elements(y)}, gpu);
  } else if (kept && y.dtype == DType::kF32) {
    launch_norm<Centred, DType::kF32>(task, StoredRows<DType::kF32>{elements(y)}, gpu);
  } else {
    norm_any_kernel<Centred><<<static_cast<unsigned>(task.rows), kSumThreads, 0, gpu.stream()>>>(task, elements(y));
    cuda_check_launch("norm_any_kernel");
  }
  measure(y, args.amax, context);
}

}  // namespace

void norm_forward(const NormForwardArgs& args, ExecContext& context) {
  if (args.x.numel() == 0) return measure(args.y, args.amax, context);
  args.kind == NormKind::kLayerNorm ? norm<true>(args, context) : norm<false>(args, context);
}

}  // namespace fp8lab::cuda
