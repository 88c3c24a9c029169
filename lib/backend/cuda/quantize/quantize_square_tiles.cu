#include "backend/cuda/cuda_check.h"
#include "backend/cuda/quantize/device/quantize_tile.cuh"
#include "backend/cuda/quantize/quantize_types.h"

namespace fp8lab::cuda {
namespace {

using Tile = TileIndex<128, 128>;

__device__ float& scale_inverse(const ScaleView& scales, std::int64_t block_row, std::int64_t block_col) {
  return reinterpret_cast<float*>(scales.data)[block_row * scales.row_stride + block_col * scales.col_stride];
}

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads) quantize_square_kernel(const __grid_constant__ TileTask task) {
  __shared__ TransposedTile transposed;
  __shared__ std::uint32_t words[kTileThreads / 32];
  __shared__ float shared_scale;
  const Tile tile(task.in);
  const unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
  const PatchPlace at{tile.first_row() + 8 * down, tile.first_col() + 8 * across, tile.inside};
  Patch<In> patch;
  patch.load(task, at);

  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(patch.rows[k]));
  largest = block_max(Magnitudes<In>::unfolded(largest), words);
  if (threadIdx.x == 0) {
    const float scale = float_scale(task.rule, largest);
    shared_scale = scale;
    const float inverse = 1.0f / scale;
    if (task.rowwise.values.data != nullptr) scale_inverse(task.rowwise.scales, tile.row, tile.col) = inverse;
    if (task.columnwise.values.data != nullptr) scale_inverse(task.columnwise.scales, tile.col, tile.row) = inverse;
  }
  __syncthreads();

  const float scale = shared_scale;
  Vector<Float8, 8> data[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) data[k] = cast_vector<Float8>(patch.rows[k], scale);
  if (task.rowwise.values.data != nullptr) {
    const RowData out = rowwise_data(task);
#pragma unroll
    for (int k = 0; k < 8; ++k) out.store(at, k, data[k]);
  }
  if (task.columnwise.values.data == nullptr) return;
  transpose_8x8(data);
  transposed.put(across, down, data);
  __syncthreads();
  transposed.store(task, tile.first_row(), tile.first_col(), tile.inside);
}

}  // namespace

void quantize_square_tiles(const TileTask& task, DType dtype, CudaContext& context) {
  const auto tiles = static_cast<unsigned>(tile_count<128, 128>(task.in));
  for_types(task.in.dtype, dtype, [&]<DType In, DType Float8>() {
    quantize_square_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
  });
  cuda_check_launch("quantize_square_kernel");
}

}  // namespace fp8lab::cuda
