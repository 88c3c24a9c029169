#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/device/cast_target.cuh"

// The last pieces are processed first: the kernel that computed the values has just written them, so they may still be
// in the L2 cache.
namespace fp8lab::cuda {
namespace {

struct CastItem {
  std::int64_t end_piece = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* in = nullptr;
  Strides strides;
  DType type{};
  bool vectors = false;
  TargetItem target;
};

__global__ void __launch_bounds__(kListThreads) quantize_list_kernel(const CastItem* __restrict__ items, int count) {
  __shared__ DataTile tile;
  const std::int64_t from_start = gridDim.x - 1 - blockIdx.x;
  const int index = item_of_piece(items, count, from_start);
  const CastItem& item = items[index];
  const std::int64_t piece = from_start - (index > 0 ? items[index - 1].end_piece : 0);
  TargetCast cast(item.target, tile, piece == 0);
  const auto one = [&](std::int64_t i) {
    const std::int64_t row = i / item.cols, col = i - row * item.cols;
    cast.take_one(load1(item.in, item.type, row * item.strides.row + col * item.strides.col), row, col);
  };
  if (item.vectors) {
    const std::byte* const in = item.in;
    const DType type = item.type;
    const auto some = [&](const Places<kListVectors>& places) {
      FloatVector stored[kListVectors];
#pragma unroll
      for (int k = 0; k < kListVectors; ++k)
        if (places.live[k]) stored[k] = load_vector(in, places.at[k], type);
#pragma unroll
      for (int k = 0; k < kListVectors; ++k) {
        if (!places.live[k]) continue;
        float values[kVector];
        widen_fast(stored[k], values, type);
        cast.take(values, places.at[k], places.of_tile + k);
      }
    };
    const auto after_tile = [&](std::int64_t row, std::int64_t col) {
      cast.write_tile(row, col, item.rows, item.cols);
    };
    walk_vectors<kListVectors>(item.rows, item.cols, item.target.tiles, piece, some, after_tile);
    if (!item.target.tiles) walk_rest(item.rows, item.cols, piece, one);
  } else {
    walk_elements(item.rows, item.cols, piece, one);
  }
  cast.finish();
}

struct CastLists {
  explicit CastLists(CudaContext&) {}
  PieceList<CastItem> items;
};

}  // namespace

void quantize_list(const QuantizeListArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  PieceList<CastItem>& list = gpu.kept<CastLists>().items;
  list.clear();
  for (const ListCast& tensor : args.tensors) {
    CastItem item{.rows = tensor.in.rows,
                  .cols = tensor.in.cols,
                  .in = tensor.in.data,
                  .strides = strides_of(tensor.in),
                  .type = tensor.in.dtype,
                  .target = target_item(tensor.target, tensor.measured)};
    item.vectors = takes_vectors(tensor.in) && target_takes_vectors(tensor.target, item.target);
    item.target.tiles &= item.vectors;
    // A matrix without elements still needs a block that writes its inverse scales.
    list.add(item, std::max<std::int64_t>(pieces_of(item.rows, item.cols, item.target.tiles), 1));
  }
  if (list.empty()) return;
  const CastItem* items = gpu.upload(list.items());
  quantize_list_kernel<<<static_cast<unsigned>(list.pieces()), kListThreads, 0, gpu.stream()>>>(
      items, static_cast<int>(list.items().size()));
  cuda_check_launch("quantize_list_kernel");
}

}  // namespace fp8lab::cuda
