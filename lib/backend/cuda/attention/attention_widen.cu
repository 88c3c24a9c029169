#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 16;  // elements of one thread: one 16-byte load

__device__ std::uint32_t widen_pair(std::uint32_t data, __nv_fp8_interpretation_t kind) {
  const __half2_raw fp16_pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(data), kind);
  const __nv_bfloat162 wide = __floats2bfloat162_rn(__half2float(__half(__half_raw{fp16_pair.x})),
                                                    __half2float(__half(__half_raw{fp16_pair.y})));
  return *reinterpret_cast<const std::uint32_t*>(&wide);
}

// Every FP8 value is exact in FP16, and every such FP16 value is exact in bf16.
__global__ void __launch_bounds__(kThreads) widen_data_kernel(MatrixView data, std::byte* out) {
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t runs_per_row = data.cols / kRun;
  if (run >= data.rows * runs_per_row) return;
  const std::int64_t row = run / runs_per_row, col = run % runs_per_row * kRun;
  const uint4 packed = *reinterpret_cast<const uint4*>(data.data + row * data.row_stride + col);
  const __nv_fp8_interpretation_t kind = data.dtype == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  auto* const to = reinterpret_cast<uint4*>(out + 2 * (row * data.cols + col));
  to[0] = make_uint4(widen_pair(packed.x & 0xFFFFu, kind), widen_pair(packed.x >> 16, kind),
                     widen_pair(packed.y & 0xFFFFu, kind), widen_pair(packed.y >> 16, kind));
  to[1] = make_uint4(widen_pair(packed.z & 0xFFFFu, kind), widen_pair(packed.z >> 16, kind),
                     widen_pair(packed.w & 0xFFFFu, kind), widen_pair(packed.w >> 16, kind));
}

}  // namespace

void widen_data(const MatrixView& data, std::byte* out, CudaContext& context) {
  const std::int64_t runs = data.rows * data.cols / kRun;
  widen_data_kernel<<<static_cast<unsigned>((runs + kThreads - 1) / kThreads), kThreads, 0, context.stream()>>>(data,
                                                                                                                out);
  cuda_check_launch("widen_data_kernel");
}

}  // namespace fp8lab::cuda
