#include "backend/cuda/cuda_check.h"
#include "backend/cuda/quantize/device/quantize_tile.cuh"
#include "backend/cuda/quantize/quantize_types.h"

namespace fp8lab::cuda {
namespace {

using Tile = TileIndex<128, 128>;

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads) quantize_tensor_kernel(const __grid_constant__ TileTask task) {
  __shared__ TransposedTile transposed;
  __shared__ std::uint32_t words[kTileThreads / 32];
  const Tile tile(task.in);
  const unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
  const PatchPlace at{tile.first_row() + 8 * down, tile.first_col() + 8 * across, tile.inside};
  Patch<In> patch;
  patch.load(task, at);
  const float scale = tensor_scale(task.scale, task.measured, task.rule);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (task.rowwise.values.data != nullptr) *reinterpret_cast<float*>(task.rowwise.scales.data) = inverse_scale(scale);
    if (task.columnwise.values.data != nullptr)
      *reinterpret_cast<float*>(task.columnwise.scales.data) = inverse_scale(scale);
  }

  Vector<Float8, 8> data[8];
  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(patch.rows[k]));
    data[k] = cast_vector<Float8>(patch.rows[k], scale);
  }
  if (task.rowwise.values.data != nullptr) {
    const RowData out = rowwise_data(task);
#pragma unroll
    for (int k = 0; k < 8; ++k) out.store(at, k, data[k]);
  }
  if (task.columnwise.values.data != nullptr) {
    transpose_8x8(data);
    transposed.put(across, down, data);
    __syncthreads();
    transposed.store(task, tile.first_row(), tile.first_col(), tile.inside);
  }
  if (task.amax == nullptr) return;
  largest = block_max(Magnitudes<In>::unfolded(largest), words);
  if (threadIdx.x == 0) raise_amax(task.amax, largest);
}

}  // namespace

void quantize_tensor_tiles(const TileTask& task, DType dtype, CudaContext& context) {
  const auto tiles = static_cast<unsigned>(tile_count<128, 128>(task.in));
  for_types(task.in.dtype, dtype, [&]<DType In, DType Float8>() {
    quantize_tensor_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
  });
  cuda_check_launch("quantize_tensor_kernel");
}

}  // namespace fp8lab::cuda
