#include <algorithm>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/lists.h"
#include "backend/cuda/device/pieces.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/optim/device/adam_step.cuh"
#include "backend/cuda/quantize/device/cast_target.cuh"
#include "core/counter_rng.h"
#include "core/float16.h"
#include "core/moment_scale.h"

// Bitwise equal to the `cpu` kernel: the same operations in the same order. NaNs are in the same places, but may have
// another sign or payload.
//
// A thread processes four vectors of four elements, whose loads are all in flight before the first is waited for. The
// combinations of types that models train with have a compiled body each; all other types share one body that
// determines the types of each vector at run time. Tensors of any strides are processed element by element.
namespace fp8lab::cuda {
namespace {

/// The weight as it is stored, rounded at random if the step requires it. `index`: of the
/// element in the tensor.
__device__ __forceinline__ float stored_weight(const AdamItem& item, const Rule& rule, std::int64_t index, float p) {
  if (!rule.stochastic || item.weight != Weight::kParam || item.param_type != DType::kBF16) return p;
  const CounterRng rng(rule.seed, item.stream + rule.step);
  return stochastic_bf16(p, rng.bits(static_cast<std::uint64_t>(item.first_element + index)));
}

/// Processes one element of a tensor of any strides.
template <bool kMeasures>
__device__ __forceinline__ void one_element(const AdamItem& item, const Rule& rule, const Scales& scales,
                                            std::int64_t index, Absmax& absmax, TargetCast* cast) {
  const std::int64_t row = index / item.cols, col = index - row * item.cols;
  const auto at = [&](const Strides& strides) { return row * strides.row + col * strides.col; };
  const std::int64_t at_param = at(item.param_strides), at_master = at(item.master_strides);
  const std::int64_t at_exp_avg = at(item.exp_avg_strides), at_exp_avg_sq = at(item.exp_avg_sq_strides);
  auto* const upper = reinterpret_cast<std::uint16_t*>(item.param);
  auto* const lower = reinterpret_cast<std::uint16_t*>(item.master);
  Element1 e;
  switch (item.weight) {
    case Weight::kParam: e.p = load1(item.param, item.param_type, at_param); break;
    case Weight::kMaster: e.p = load1(item.master, DType::kF32, at_master); break;
    case Weight::kParts16: e.p = from_parts16(upper[at_param], lower[at_master]); break;
  }
  e.g = load1(item.grad, item.grad_type, at(item.grad_strides));
  e.m = load1(item.exp_avg, item.exp_avg_type, at_exp_avg);
  e.v = load1(item.exp_avg_sq, item.exp_avg_sq_type, at_exp_avg_sq);
  apply_read_scales<true>(item, scales, e);
  update_moments(rule, e);
  if constexpr (kMeasures) {
    Absmax::raise(absmax.exp_avg, e.m);
    Absmax::raise(absmax.exp_avg_sq, e.v);
    return;
  }
  update_param(rule, e);
  if (cast != nullptr && item.target.there) cast->take_one(e.p, row, col);
  apply_write_scales<true>(item, scales, e);
  store1(item.exp_avg, item.exp_avg_type, at_exp_avg, e.m);
  store1(item.exp_avg_sq, item.exp_avg_sq_type, at_exp_avg_sq, e.v);
  if (item.weight == Weight::kParts16) {
    const Parts16 parts = to_parts16(e.p);
    upper[at_param] = parts.high;
    lower[at_master] = parts.low;
    return;
  }
  if (item.weight == Weight::kMaster) store1(item.master, DType::kF32, at_master, e.p);
  store1(item.param, item.param_type, at_param, stored_weight(item, rule, index, e.p));
}

/// Processes the vectors of one thread.
template <bool kMeasures, class Types>
__device__ __forceinline__ void some_vectors(const AdamItem& item, const Rule& rule, const Scales& scales,
                                             const Places<Types::kTogether>& places, Absmax& absmax, TargetCast* cast) {
  constexpr int kTogether = Types::kTogether;
  const Weight weight = Types::weight(item);
  const DType param_type = Types::param(item), grad_type = Types::grad(item);
  const DType exp_avg_type = Types::exp_avg(item), exp_avg_sq_type = Types::exp_avg_sq(item);
  FloatVector params[kTogether], masters[kTogether], grads[kTogether], exp_avgs[kTogether], exp_avg_sqs[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (!places.live[k]) continue;
    if (weight != Weight::kMaster) params[k] = load_vector(item.param, places.at[k], param_type);
    if (weight == Weight::kMaster) masters[k] = load_vector(item.master, places.at[k], DType::kF32);
    if (weight == Weight::kParts16) masters[k] = load_vector(item.master, places.at[k], DType::kBF16);
    grads[k] = load_vector(item.grad, places.at[k], grad_type);
    exp_avgs[k] = load_vector(item.exp_avg, places.at[k], exp_avg_type);
    exp_avg_sqs[k] = load_vector(item.exp_avg_sq, places.at[k], exp_avg_sq_type);
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (!places.live[k]) continue;
    float p[kVector], g[kVector], m[kVector], v[kVector];
    if (weight == Weight::kParam) widen_fast(params[k], p, param_type);
    if (weight == Weight::kMaster) widen_fast(masters[k], p, DType::kF32);
    if (weight == Weight::kParts16)
#pragma unroll
      for (int i = 0; i < kVector; ++i) p[i] = from_parts16(params[k].bits16(i), masters[k].bits16(i));
    widen_fast(grads[k], g, grad_type);
    widen_fast(exp_avgs[k], m, exp_avg_type);
    widen_fast(exp_avg_sqs[k], v, exp_avg_sq_type);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      Element1 e{p[i], g[i], m[i], v[i]};
      apply_read_scales<Types::kScales>(item, scales, e);
      update_moments(rule, e);
      if constexpr (kMeasures) {
        Absmax::raise(absmax.exp_avg, e.m);
        Absmax::raise(absmax.exp_avg_sq, e.v);
        continue;
      }
      update_param(rule, e);
      apply_write_scales<Types::kScales>(item, scales, e);
      p[i] = e.p;
      m[i] = e.m;
      v[i] = e.v;
    }
    if constexpr (kMeasures) continue;
    narrow(m, exp_avg_type).store(item.exp_avg, places.at[k], exp_avg_type);
    narrow(v, exp_avg_sq_type).store(item.exp_avg_sq, places.at[k], exp_avg_sq_type);
    if (weight == Weight::kParts16) {
      std::uint16_t upper[kVector], lower[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Parts16 parts = to_parts16(p[i]);
        upper[i] = parts.high;
        lower[i] = parts.low;
      }
      pack16(upper).store(item.param, places.at[k], DType::kBF16);
      pack16(lower).store(item.master, places.at[k], DType::kBF16);
    } else {
      if (weight == Weight::kMaster) narrow(p, DType::kF32).store(item.master, places.at[k], DType::kF32);
      if constexpr (Types::kRoundsAtRandom)
#pragma unroll
        for (int i = 0; i < kVector; ++i) p[i] = stored_weight(item, rule, places.at[k] + i, p[i]);
      narrow(p, param_type).store(item.param, places.at[k], param_type);
    }
    if constexpr (Types::kCasts)
      if (item.target.there) cast->take(p, places.at[k], places.of_tile + k);
  }
}

template <bool kMeasures, class Types>
__device__ __forceinline__ void in_vectors(const AdamItem& item, const Rule& rule, const Scales& scales,
                                           std::int64_t piece, Absmax& absmax, TargetCast* cast) {
  const auto some = [&](const Places<Types::kTogether>& places) {
    some_vectors<kMeasures, Types>(item, rule, scales, places, absmax, cast);
  };
  const auto after_tile = [&](std::int64_t row, std::int64_t col) {
    if constexpr (Types::kCasts && !kMeasures) cast->write_tile(row, col, item.rows, item.cols);
  };
  const bool tiles = Types::kCasts && item.target.tiles;
  walk_vectors<Types::kTogether>(item.rows, item.cols, tiles, piece, some, after_tile);
}

/// Runs before adam_kernel: computes the new moments in f16 and e4m3 once, to find their largest magnitudes, from which
/// adam_kernel computes the scales that it stores them with.
__global__ void __launch_bounds__(kListThreads)
    adam_measure_kernel(AdamItem* items, int count, const __grid_constant__ Rule rule) {
  const int index = item_of_piece(items, count, blockIdx.x);
  AdamItem& item = items[index];
  if (!item.scaled()) return;
  const std::int64_t piece = blockIdx.x - (index > 0 ? items[index - 1].end_piece : 0);
  Scales scales;
  scales.read_gradient(rule);
  if (item.exp_avg_scale != nullptr) scales.exp_avg_read = *item.exp_avg_scale;
  if (item.exp_avg_sq_scale != nullptr) scales.exp_avg_sq_read = *item.exp_avg_sq_scale;
  if (piece == 0 && threadIdx.x == 0) {
    item.exp_avg_read = scales.exp_avg_read;
    item.exp_avg_sq_read = scales.exp_avg_sq_read;
  }
  Absmax absmax;
  const auto one = [&](std::int64_t i) { one_element<true>(item, rule, scales, i, absmax, nullptr); };
  if (item.body == Body::kStrided) {
    walk_elements(item.rows, item.cols, piece, one);
  } else {
    if (item.body == Body::kEightBitsScaledMoments)
      in_vectors<true, Known<Weight::kParam, DType::kF32, DType::kBF16, DType::kE4M3, DType::kF16, true>>(
          item, rule, scales, piece, absmax, nullptr);
    else
      in_vectors<true, Asked>(item, rule, scales, piece, absmax, nullptr);
    if (!item.target.tiles) walk_rest(item.rows, item.cols, piece, one);
  }
  const unsigned exp_avg = block_max(absmax.exp_avg), exp_avg_sq = block_max(absmax.exp_avg_sq);
  if (threadIdx.x != 0) return;
  atomicMax(&item.exp_avg_absmax, exp_avg);
  atomicMax(&item.exp_avg_sq_absmax, exp_avg_sq);
}

__global__ void __launch_bounds__(kListThreads, 2)
    adam_kernel(const AdamItem* __restrict__ items, int count, const __grid_constant__ Rule rule) {
  __shared__ DataTile tile;
  const int index = item_of_piece(items, count, blockIdx.x);
  const AdamItem& item = items[index];
  const std::int64_t piece = blockIdx.x - (index > 0 ? items[index - 1].end_piece : 0);
  Scales scales;
  scales.read_gradient(rule);
  if (item.scaled()) {
    scales.exp_avg_read = item.exp_avg_read;
    scales.exp_avg_sq_read = item.exp_avg_sq_read;
    const float exp_avg = moment_scale(__uint_as_float(item.exp_avg_absmax), item.exp_avg_type);
    const float exp_avg_sq = moment_scale(__uint_as_float(item.exp_avg_sq_absmax), item.exp_avg_sq_type);
    scales.exp_avg_write_inverse = 1.0 / static_cast<double>(exp_avg);
    scales.exp_avg_sq_write_inverse = 1.0 / static_cast<double>(exp_avg_sq);
    if (piece == 0 && threadIdx.x == 0) {
      if (item.exp_avg_scale != nullptr) *item.exp_avg_scale = exp_avg;
      if (item.exp_avg_sq_scale != nullptr) *item.exp_avg_sq_scale = exp_avg_sq;
    }
  }
  TargetCast cast(item.target, tile, piece == 0);
  Absmax unused;
  const auto run = [&]<class Types>(Types) { in_vectors<false, Types>(item, rule, scales, piece, unused, &cast); };
  const auto one = [&](std::int64_t i) { one_element<false>(item, rule, scales, i, unused, &cast); };
  using enum DType;
  switch (item.body) {
    case Body::kStrided: walk_elements(item.rows, item.cols, piece, one); break;
    case Body::kAnyTypes: run(Asked{}); break;
    case Body::kF32: run(Known<Weight::kParam, kF32, kF32, kF32>{}); break;
    case Body::kMaster: run(Known<Weight::kMaster, kBF16, kBF16, kF32>{}); break;
    case Body::kRemainder: run(Known<Weight::kParts16, kBF16, kBF16, kF32>{}); break;
    case Body::kMasterBf16Moments: run(Known<Weight::kMaster, kBF16, kBF16, kBF16>{}); break;
    case Body::kEightBits: run(Known<Weight::kParam, kF32, kBF16, kF32, kF32, true>{}); break;
    case Body::kEightBitsBf16Moments: run(Known<Weight::kParam, kF32, kBF16, kBF16, kBF16, true>{}); break;
    case Body::kEightBitsScaledMoments: run(Known<Weight::kParam, kF32, kBF16, kE4M3, kF16, true>{}); break;
  }
  if (item.body != Body::kStrided && !item.target.tiles) walk_rest(item.rows, item.cols, piece, one);
  cast.finish();
}

Body body_of(const AdamItem& item) {
  using enum DType;
  const auto types = [&](Weight weight, DType param, DType grad, DType exp_avg, DType exp_avg_sq) {
    return item.weight == weight && item.param_type == param && item.grad_type == grad &&
           item.exp_avg_type == exp_avg && item.exp_avg_sq_type == exp_avg_sq;
  };
  if (types(Weight::kParam, kF32, kBF16, kF32, kF32)) return Body::kEightBits;
  if (types(Weight::kParam, kF32, kBF16, kBF16, kBF16)) return Body::kEightBitsBf16Moments;
  if (types(Weight::kParam, kF32, kBF16, kE4M3, kF16)) return Body::kEightBitsScaledMoments;
  if (item.target.there) return Body::kAnyTypes;
  if (types(Weight::kParam, kF32, kF32, kF32, kF32)) return Body::kF32;
  if (types(Weight::kMaster, kBF16, kBF16, kF32, kF32)) return Body::kMaster;
  if (types(Weight::kParts16, kBF16, kBF16, kF32, kF32)) return Body::kRemainder;
  if (types(Weight::kMaster, kBF16, kBF16, kBF16, kBF16)) return Body::kMasterBf16Moments;
  return Body::kAnyTypes;
}

AdamItem item_of(const AdamTensor& tensor) {
  const auto scale_of = [](const MatrixView& moment, float* scale) {
    return moment_limit(moment.dtype) > 0.0f ? scale : nullptr;
  };
  AdamItem item{.rows = tensor.param.rows,
                .cols = tensor.param.cols,
                .param = tensor.param.data,
                .grad = tensor.grad.data,
                .exp_avg = tensor.exp_avg.data,
                .exp_avg_sq = tensor.exp_avg_sq.data,
                .master = tensor.master.data,
                .exp_avg_scale = scale_of(tensor.exp_avg, tensor.exp_avg_scale),
                .exp_avg_sq_scale = scale_of(tensor.exp_avg_sq, tensor.exp_avg_sq_scale),
                .param_strides = strides_of(tensor.param),
                .grad_strides = strides_of(tensor.grad),
                .exp_avg_strides = strides_of(tensor.exp_avg),
                .exp_avg_sq_strides = strides_of(tensor.exp_avg_sq),
                .master_strides = strides_of(tensor.master),
                .target = target_item(tensor.target, nullptr),
                .stream = tensor.stream,
                .first_element = tensor.first_element,
                .param_type = tensor.param.dtype,
                .grad_type = tensor.grad.dtype,
                .exp_avg_type = tensor.exp_avg.dtype,
                .exp_avg_sq_type = tensor.exp_avg_sq.dtype};
  if (tensor.master.data != nullptr)
    item.weight = tensor.master.dtype == DType::kI16 ? Weight::kParts16 : Weight::kMaster;
  const bool vectors = takes_vectors(tensor.param) && takes_vectors(tensor.grad) && takes_vectors(tensor.exp_avg) &&
                       takes_vectors(tensor.exp_avg_sq) &&
                       (tensor.master.data == nullptr || takes_vectors(tensor.master)) &&
                       target_takes_vectors(tensor.target, item.target);
  item.target.tiles &= vectors;
  item.body = vectors ? body_of(item) : Body::kStrided;
  return item;
}

struct AdamLists {
  explicit AdamLists(CudaContext&) {}
  PieceList<AdamItem> items;
};

}  // namespace

void adam(const AdamArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  PieceList<AdamItem>& list = gpu.kept<AdamLists>().items;
  list.clear();
  bool measures = false;
  for (const AdamTensor& tensor : args.tensors) {
    const AdamItem item = item_of(tensor);
    measures |= item.scaled();
    // A tensor without elements still needs a block that writes its scales.
    const std::int64_t least = item.scaled() || item.target.there ? 1 : 0;
    list.add(item, std::max(pieces_of(item.rows, item.cols, item.target.tiles), least));
  }
  if (list.empty()) return;
  // The upload belongs only to this launch, so the measuring kernel may write to it.
  auto* const items = const_cast<AdamItem*>(gpu.upload(list.items()));
  const int count = static_cast<int>(list.items().size());
  const Rule rule{.learning_rate = args.learning_rate,
                  .exp_avg_weight = args.exp_avg_weight,
                  .exp_avg_sq_weight = args.exp_avg_sq_weight,
                  .epsilon = args.epsilon,
                  .coupled_decay = args.decoupled_decay ? 0.0f : args.weight_decay,
                  .decoupled_decay = args.decoupled_decay ? args.weight_decay : 0.0f,
                  .inverse_correction1 = 1.0 / static_cast<double>(args.bias_correction1),
                  .inverse_correction2 = 1.0 / static_cast<double>(args.bias_correction2),
                  .gradient_scale = args.gradient_scale,
                  .stochastic = args.stochastic,
                  .seed = args.seed,
                  .step = args.step};
  const auto blocks = static_cast<unsigned>(list.pieces());
  if (measures) {
    adam_measure_kernel<<<blocks, kListThreads, 0, gpu.stream()>>>(items, count, rule);
    cuda_check_launch("adam_measure_kernel");
  }
  adam_kernel<<<blocks, kListThreads, 0, gpu.stream()>>>(items, count, rule);
  cuda_check_launch("adam_kernel");
}

}  // namespace fp8lab::cuda
