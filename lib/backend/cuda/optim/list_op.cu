#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/lists.h"
#include "backend/cuda/device/pieces.cuh"
#include "backend/cuda/kernels.h"
#include "core/check.h"
#include "core/lerp.h"
#include "core/shape.h"

// Bitwise equal to the `cpu` kernel, except for the sign and payload of NaNs.
namespace fp8lab::cuda {
namespace {

struct ListItem {
  std::int64_t end_piece = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::byte* out = nullptr;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  Strides out_strides, a_strides, b_strides;
  DType out_type{}, a_type{}, b_type{};
  bool vectors = false;
};

// Element-wise rules of (out, a, b); kOperands is how many of a and b they read.
struct Scaled {
  static constexpr int kOperands = 0;
  __device__ static float apply(float s, float x, float, float) { return s * x; }
};
struct Added {
  static constexpr int kOperands = 0;
  __device__ static float apply(float s, float x, float, float) { return x + s; }
};
struct AddedList {
  static constexpr int kOperands = 1;
  __device__ static float apply(float s, float x, float a, float) { return x + s * a; }
};
struct Root {
  static constexpr int kOperands = 0;
  __device__ static float apply(float, float x, float, float) { return sqrtf(x); }
};
struct Lerped {
  static constexpr int kOperands = 1;
  __device__ static float apply(float s, float x, float a, float) { return fp8lab::lerp(x, a, s); }
};
struct LerpedToProduct {
  static constexpr int kOperands = 2;
  __device__ static float apply(float s, float x, float a, float b) { return fp8lab::lerp(x, a * b, s); }
};
struct AddedQuotient {
  static constexpr int kOperands = 2;
  __device__ static float apply(float s, float x, float a, float b) { return x + s * (a / b); }
};

template <class Op>
__device__ __forceinline__ void one_element(const ListItem& item, float s, std::int64_t index) {
  const std::int64_t row = index / item.cols, col = index - row * item.cols;
  const auto at = [&](const Strides& strides) { return row * strides.row + col * strides.col; };
  const float x = load1(item.out, item.out_type, at(item.out_strides));
  const float a = Op::kOperands > 0 ? load1(item.a, item.a_type, at(item.a_strides)) : 0.0f;
  const float b = Op::kOperands > 1 ? load1(item.b, item.b_type, at(item.b_strides)) : 0.0f;
  store1(item.out, item.out_type, at(item.out_strides), Op::apply(s, x, a, b));
}

template <class Op>
__global__ void __launch_bounds__(kListThreads) list_op_kernel(const ListItem* __restrict__ items, int count, float s) {
  const int index = item_of_piece(items, count, blockIdx.x);
  const ListItem& item = items[index];
  const std::int64_t piece = blockIdx.x - (index > 0 ? items[index - 1].end_piece : 0);
  const auto one = [&](std::int64_t i) { one_element<Op>(item, s, i); };
  if (!item.vectors) return walk_elements(item.rows, item.cols, piece, one);
  const auto some = [&](const Places<kListVectors>& places) {
    FloatVector xs[kListVectors], as[kListVectors], bs[kListVectors];
#pragma unroll
    for (int k = 0; k < kListVectors; ++k) {
      if (!places.live[k]) continue;
      xs[k] = load_vector(item.out, places.at[k], item.out_type);
      if (Op::kOperands > 0) as[k] = load_vector(item.a, places.at[k], item.a_type);
      if (Op::kOperands > 1) bs[k] = load_vector(item.b, places.at[k], item.b_type);
    }
#pragma unroll
    for (int k = 0; k < kListVectors; ++k) {
      if (!places.live[k]) continue;
      float x[kVector], a[kVector] = {}, b[kVector] = {};
      widen_fast(xs[k], x, item.out_type);
      if (Op::kOperands > 0) widen_fast(as[k], a, item.a_type);
      if (Op::kOperands > 1) widen_fast(bs[k], b, item.b_type);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] = Op::apply(s, x[i], a[i], b[i]);
      narrow(x, item.out_type).store(item.out, places.at[k], item.out_type);
    }
  };
  walk_vectors<kListVectors>(item.rows, item.cols, false, piece, some, [](std::int64_t, std::int64_t) {});
  walk_rest(item.rows, item.cols, piece, one);
}

struct Lists {
  explicit Lists(CudaContext&) {}
  PieceList<ListItem> items;
};

template <class Op>
void launch(const ListOpArgs& args, CudaContext& context) {
  PieceList<ListItem>& list = context.kept<Lists>().items;
  list.clear();
  for (const ListOpTensor& tensor : args.tensors) {
    ListItem item{.rows = tensor.out.rows,
                  .cols = tensor.out.cols,
                  .out = tensor.out.data,
                  .a = tensor.a.data,
                  .b = tensor.b.data,
                  .out_strides = strides_of(tensor.out),
                  .a_strides = strides_of(tensor.a),
                  .b_strides = strides_of(tensor.b),
                  .out_type = tensor.out.dtype,
                  .a_type = tensor.a.dtype,
                  .b_type = tensor.b.dtype,
                  .vectors = takes_vectors(tensor.out) && (Op::kOperands < 1 || takes_vectors(tensor.a)) &&
                             (Op::kOperands < 2 || takes_vectors(tensor.b))};
    list.add(item, pieces_of(item.rows, item.cols, false));
  }
  if (list.empty()) return;
  const ListItem* items = context.upload(list.items());
  list_op_kernel<Op><<<static_cast<unsigned>(list.pieces()), kListThreads, 0, context.stream()>>>(
      items, static_cast<int>(list.items().size()), args.scalar);
  cuda_check_launch("list_op_kernel");
}

}  // namespace

void list_op(const ListOpArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  switch (args.op) {
    case ListOp::kScale: return launch<Scaled>(args, gpu);
    case ListOp::kAdd: return launch<Added>(args, gpu);
    case ListOp::kAddList: return launch<AddedList>(args, gpu);
    case ListOp::kSqrt: return launch<Root>(args, gpu);
    case ListOp::kLerp: return launch<Lerped>(args, gpu);
    case ListOp::kLerpProduct: return launch<LerpedToProduct>(args, gpu);
    case ListOp::kAddcdiv: return launch<AddedQuotient>(args, gpu);
  }
  fail("cuda: no such list operation");
}

}  // namespace fp8lab::cuda
