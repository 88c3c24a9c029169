#include "backend/cuda/attention/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/cuda_check.h"

namespace fp8lab::cuda {
namespace {

/// The driver's cuTensorMapEncodeTiled, found through the runtime so that nothing links with the driver.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  check(found == cudaDriverEntryPointSuccess && function != nullptr,
        "the driver has no cuTensorMapEncodeTiled; install a driver for CUDA 12 or later");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap head_rows_map(const WideOperand& operand, const AttentionShape& shape, std::int64_t heads, int rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  const auto row_bytes = static_cast<cuuint64_t>(2 * operand.row_stride);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(heads * shape.head_dim), static_cast<cuuint64_t>(shape.batch),
                               static_cast<cuuint64_t>(shape.seq)};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * static_cast<cuuint64_t>(shape.batch)};
  const cuuint32_t box[3] = {64, 1, static_cast<cuuint32_t>(rows)}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<std::byte*>(operand.data), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS,
        "cuTensorMapEncodeTiled refused an operand of attention with error " + std::to_string(result));
  return map;
}

}  // namespace fp8lab::cuda
