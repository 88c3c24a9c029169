#include <algorithm>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/pieces.cuh"
#include "backend/cuda/device/vectors.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lists.h"
#include "core/check.h"
#include "core/float_bits.h"
#include "core/moment_scale.h"
#include "core/shape.h"

// Bitwise the `cpu` kernel: the same operations in the same order. A NaN is a NaN here and there, of another sign or payload.
//
// A thread takes four vectors of four elements, whose loads are all under way before the first is waited for. Bodies for the types that
// models train with are compiled for them; all other types share one that asks for every vector. Tensors of any strides go element by
// element.
namespace fp8lab::cuda {
namespace {

/// Where the value lies that is optimised.
enum class Weight : std::uint8_t {
  kParam,   ///< in the parameter itself
  kMaster,  ///< in an f32 copy, of which the parameter is the rounding
  kHalves,  ///< its upper half in the parameter, rounded, its lower half in the master
};

/// Which body a tensor takes.
enum class Body : std::uint8_t { kStrided, kAnyTypes, kF32, kMasterOf8Bits, kMaster, kRemainder, kMasterBf16Moments };

struct AdamItem {
  std::int64_t end_piece = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::byte* param = nullptr;
  std::byte* grad = nullptr;
  std::byte* exp_avg = nullptr;
  std::byte* exp_avg_sq = nullptr;
  std::byte* master = nullptr;
  float* exp_avg_scale = nullptr;  ///< null where the moment has none
  float* exp_avg_sq_scale = nullptr;
  // Left by the measuring pass: what the moments had been written by, and the bits of their largest finite magnitudes.
  float exp_avg_read = 1.0f;
  float exp_avg_sq_read = 1.0f;
  unsigned exp_avg_absmax = 0;
  unsigned exp_avg_sq_absmax = 0;
  Strides param_strides, grad_strides, exp_avg_strides, exp_avg_sq_strides, master_strides;
  DType param_type{}, grad_type{}, exp_avg_type{}, exp_avg_sq_type{};
  Weight weight{};
  Body body{};

  __host__ __device__ bool scaled() const { return exp_avg_scale != nullptr || exp_avg_sq_scale != nullptr; }
};

struct Rule {
  float learning_rate, beta1, rest1, beta2, rest2, epsilon, coupled_decay, decoupled_decay, correction1, correction2;
  const float* gradient_scale;
};

/// What a body knows when it is compiled.
template <Weight kWeight, DType kParam, DType kGrad, DType kMoments>
struct Known {
  static constexpr int kTogether = kListVectors;
  __device__ static constexpr Weight weight(const AdamItem&) { return kWeight; }
  __device__ static constexpr DType param(const AdamItem&) { return kParam; }
  __device__ static constexpr DType grad(const AdamItem&) { return kGrad; }
  __device__ static constexpr DType exp_avg(const AdamItem&) { return kMoments; }
  __device__ static constexpr DType exp_avg_sq(const AdamItem&) { return kMoments; }
};
struct Asked {
  static constexpr int kTogether = 1;  // each vector comes with every type's conversions
  __device__ static Weight weight(const AdamItem& item) { return item.weight; }
  __device__ static DType param(const AdamItem& item) { return item.param_type; }
  __device__ static DType grad(const AdamItem& item) { return item.grad_type; }
  __device__ static DType exp_avg(const AdamItem& item) { return item.exp_avg_type; }
  __device__ static DType exp_avg_sq(const AdamItem& item) { return item.exp_avg_sq_type; }
};

/// The f32 value whose upper half, rounded, is `high` and whose lower half is `low`.
__device__ __forceinline__ float from_halves(std::uint16_t high, std::uint16_t low) {
  return __uint_as_float((static_cast<unsigned>(high) - (low >> 15) << 16) | low);
}

struct Halves {
  std::uint16_t high;
  std::uint16_t low;
};
__device__ __forceinline__ Halves to_halves(float value) {
  unsigned bits = __float_as_uint(value);
  // A NaN's payload could carry into the sign and leave a zero.
  if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) bits = (bits & ~kFloatMagnitudeMask) | kFloatQuietNanBits;
  return {static_cast<std::uint16_t>((bits >> 16) + (bits >> 15 & 1u)), static_cast<std::uint16_t>(bits)};
}

/// What a block has to know of its tensor beside addresses.
struct Scales {
  float gradient = 1.0f;
  bool scales_gradient = false;
  float exp_avg_read = 1.0f, exp_avg_sq_read = 1.0f;
  float exp_avg_write = 1.0f, exp_avg_sq_write = 1.0f;
};

struct Element1 {
  float p, g, m, v;
};

__device__ __forceinline__ void update_moments(const Rule& rule, Element1& e) {
  const float gradient = e.g + rule.coupled_decay * e.p;
  e.m = rule.beta1 * e.m + rule.rest1 * gradient;
  e.v = rule.beta2 * e.v + rule.rest2 * (gradient * gradient);
}

__device__ __forceinline__ void update_param(const Rule& rule, Element1& e) {
  const float mean = e.m / rule.correction1;
  const float deviation = sqrtf(e.v / rule.correction2);
  e.p = e.p - rule.learning_rate * (mean / (deviation + rule.epsilon) + rule.decoupled_decay * e.p);
}

/// The largest finite magnitudes of the new moments of a thread.
struct Absmax {
  unsigned exp_avg = 0;
  unsigned exp_avg_sq = 0;

  __device__ static void raise(unsigned& largest, float value) {
    const unsigned magnitude = __float_as_uint(value) & kFloatMagnitudeMask;
    if (magnitude < kFloatInfinityBits && magnitude > largest) largest = magnitude;
  }
};

/// Reads the scales into elements as loaded.
__device__ __forceinline__ void apply_read_scales(const AdamItem& item, const Scales& scales, Element1& e) {
  if (scales.scales_gradient) e.g *= scales.gradient;
  if (item.exp_avg_scale != nullptr) e.m *= scales.exp_avg_read;
  if (item.exp_avg_sq_scale != nullptr) e.v *= scales.exp_avg_sq_read;
}

/// One element of a tensor of any strides.
template <bool kMeasures>
__device__ __forceinline__ void one_element(const AdamItem& item, const Rule& rule, const Scales& scales, std::int64_t index,
                                            Absmax& absmax) {
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
    case Weight::kHalves: e.p = from_halves(upper[at_param], lower[at_master]); break;
  }
  e.g = load1(item.grad, item.grad_type, at(item.grad_strides));
  e.m = load1(item.exp_avg, item.exp_avg_type, at_exp_avg);
  e.v = load1(item.exp_avg_sq, item.exp_avg_sq_type, at_exp_avg_sq);
  apply_read_scales(item, scales, e);
  update_moments(rule, e);
  if constexpr (kMeasures) {
    Absmax::raise(absmax.exp_avg, e.m);
    Absmax::raise(absmax.exp_avg_sq, e.v);
    return;
  }
  update_param(rule, e);
  if (item.exp_avg_scale != nullptr) e.m /= scales.exp_avg_write;
  if (item.exp_avg_sq_scale != nullptr) e.v /= scales.exp_avg_sq_write;
  store1(item.exp_avg, item.exp_avg_type, at_exp_avg, e.m);
  store1(item.exp_avg_sq, item.exp_avg_sq_type, at_exp_avg_sq, e.v);
  if (item.weight == Weight::kHalves) {
    const Halves halves = to_halves(e.p);
    upper[at_param] = halves.high;
    lower[at_master] = halves.low;
    return;
  }
  if (item.weight == Weight::kMaster) store1(item.master, DType::kF32, at_master, e.p);
  store1(item.param, item.param_type, at_param, e.p);
}

/// Vectors of one thread, at `at[k]` where `live[k]`.
template <bool kMeasures, class Types>
__device__ __forceinline__ void some_vectors(const AdamItem& item, const Rule& rule, const Scales& scales,
                                             const std::int64_t (&at)[Types::kTogether], const bool (&live)[Types::kTogether],
                                             Absmax& absmax) {
  constexpr int kTogether = Types::kTogether;
  const Weight weight = Types::weight(item);
  const DType param_type = Types::param(item), grad_type = Types::grad(item);
  const DType exp_avg_type = Types::exp_avg(item), exp_avg_sq_type = Types::exp_avg_sq(item);
  Raw4 params[kTogether], masters[kTogether], grads[kTogether], exp_avgs[kTogether], exp_avg_sqs[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (!live[k]) continue;
    if (weight != Weight::kMaster) params[k] = load4(item.param, param_type, at[k]);
    if (weight == Weight::kMaster) masters[k] = load4(item.master, DType::kF32, at[k]);
    if (weight == Weight::kHalves) masters[k] = load4(item.master, DType::kBF16, at[k]);
    grads[k] = load4(item.grad, grad_type, at[k]);
    exp_avgs[k] = load4(item.exp_avg, exp_avg_type, at[k]);
    exp_avg_sqs[k] = load4(item.exp_avg_sq, exp_avg_sq_type, at[k]);
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (!live[k]) continue;
    float p[kVector], g[kVector], m[kVector], v[kVector];
    if (weight == Weight::kParam) decode(param_type, params[k], p);
    if (weight == Weight::kMaster) decode(DType::kF32, masters[k], p);
    if (weight == Weight::kHalves)
#pragma unroll
      for (int i = 0; i < kVector; ++i) p[i] = from_halves(half_of(params[k], i), half_of(masters[k], i));
    decode(grad_type, grads[k], g);
    decode(exp_avg_type, exp_avgs[k], m);
    decode(exp_avg_sq_type, exp_avg_sqs[k], v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      Element1 e{p[i], g[i], m[i], v[i]};
      apply_read_scales(item, scales, e);
      update_moments(rule, e);
      if constexpr (kMeasures) {
        Absmax::raise(absmax.exp_avg, e.m);
        Absmax::raise(absmax.exp_avg_sq, e.v);
        continue;
      }
      update_param(rule, e);
      if (item.exp_avg_scale != nullptr) e.m /= scales.exp_avg_write;
      if (item.exp_avg_sq_scale != nullptr) e.v /= scales.exp_avg_sq_write;
      p[i] = e.p;
      m[i] = e.m;
      v[i] = e.v;
    }
    if constexpr (kMeasures) continue;
    store4(item.exp_avg, exp_avg_type, at[k], encode(exp_avg_type, m));
    store4(item.exp_avg_sq, exp_avg_sq_type, at[k], encode(exp_avg_sq_type, v));
    if (weight == Weight::kHalves) {
      std::uint16_t upper[kVector], lower[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Halves halves = to_halves(p[i]);
        upper[i] = halves.high;
        lower[i] = halves.low;
      }
      store4(item.param, DType::kBF16, at[k], of_halves(upper));
      store4(item.master, DType::kBF16, at[k], of_halves(lower));
      continue;
    }
    if (weight == Weight::kMaster) store4(item.master, DType::kF32, at[k], encode(DType::kF32, p));
    store4(item.param, param_type, at[k], encode(param_type, p));
  }
}

/// A stretch of a tensor in vectors; what is left of the last one goes element by element.
template <bool kMeasures, class Types>
__device__ __forceinline__ void in_vectors(const AdamItem& item, const Rule& rule, const Scales& scales, Stretch stretch, Absmax& absmax) {
  const std::int64_t whole = stretch.end - stretch.end % kVector;
  constexpr int kTogether = Types::kTogether;
#pragma unroll 1
  for (std::int64_t first = stretch.begin; first < whole; first += kTogether * kListThreads * kVector) {
    std::int64_t at[kTogether];
    bool live[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      at[k] = first + (k * kListThreads + static_cast<int>(threadIdx.x)) * kVector;
      live[k] = at[k] < whole;
    }
    some_vectors<kMeasures, Types>(item, rule, scales, at, live, absmax);
  }
  if (const std::int64_t index = whole + threadIdx.x; index < stretch.end)
    one_element<kMeasures>(item, rule, scales, index, absmax);
}

/// The largest of the block's values in its first thread. All threads call it.
__device__ __forceinline__ unsigned block_max(unsigned value) {
  __shared__ unsigned of_warps[kListThreads / 32];
  const unsigned of_warp = __reduce_max_sync(0xFFFFFFFFu, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  unsigned largest = 0;
  if (threadIdx.x == 0)
    for (const unsigned one : of_warps) largest = max(largest, one);
  return largest;
}

template <bool kMeasures>
__global__ void __launch_bounds__(kListThreads, 2) adam_kernel(AdamItem* items, int count, Rule rule) {
  const std::int64_t piece = blockIdx.x;
  const int index = item_of_piece(items, count, piece);
  AdamItem& item = items[index];
  const std::int64_t before = index > 0 ? items[index - 1].end_piece : 0;
  const Stretch stretch = stretch_of(item, before, piece, kListPiece);

  Scales scales;
  if (rule.gradient_scale != nullptr) {
    scales.scales_gradient = true;
    scales.gradient = *rule.gradient_scale;
  }
  if constexpr (kMeasures) {
    if (!item.scaled()) return;
    if (item.exp_avg_scale != nullptr) scales.exp_avg_read = *item.exp_avg_scale;
    if (item.exp_avg_sq_scale != nullptr) scales.exp_avg_sq_read = *item.exp_avg_sq_scale;
    if (piece == before && threadIdx.x == 0) {
      item.exp_avg_read = scales.exp_avg_read;
      item.exp_avg_sq_read = scales.exp_avg_sq_read;
    }
  } else if (item.scaled()) {
    scales.exp_avg_read = item.exp_avg_read;
    scales.exp_avg_sq_read = item.exp_avg_sq_read;
    scales.exp_avg_write = moment_scale(__uint_as_float(item.exp_avg_absmax), item.exp_avg_type);
    scales.exp_avg_sq_write = moment_scale(__uint_as_float(item.exp_avg_sq_absmax), item.exp_avg_sq_type);
    if (piece == before && threadIdx.x == 0) {
      if (item.exp_avg_scale != nullptr) *item.exp_avg_scale = scales.exp_avg_write;
      if (item.exp_avg_sq_scale != nullptr) *item.exp_avg_sq_scale = scales.exp_avg_sq_write;
    }
  }

  Absmax absmax;
  const auto run = [&]<class Types>(Types) { in_vectors<kMeasures, Types>(item, rule, scales, stretch, absmax); };
  using enum DType;
  if (item.body == Body::kStrided) {
    for (std::int64_t i = stretch.begin + threadIdx.x; i < stretch.end; i += kListThreads)
      one_element<kMeasures>(item, rule, scales, i, absmax);
  } else if constexpr (kMeasures) {
    run(Asked{});
  } else {
    switch (item.body) {
      case Body::kF32: run(Known<Weight::kParam, kF32, kF32, kF32>{}); break;
      case Body::kMasterOf8Bits: run(Known<Weight::kParam, kF32, kBF16, kF32>{}); break;
      case Body::kMaster: run(Known<Weight::kMaster, kBF16, kBF16, kF32>{}); break;
      case Body::kRemainder: run(Known<Weight::kHalves, kBF16, kBF16, kF32>{}); break;
      case Body::kMasterBf16Moments: run(Known<Weight::kMaster, kBF16, kBF16, kBF16>{}); break;
      default: run(Asked{});
    }
  }

  if constexpr (kMeasures) {
    const unsigned exp_avg = block_max(absmax.exp_avg), exp_avg_sq = block_max(absmax.exp_avg_sq);
    if (threadIdx.x == 0) {
      atomicMax(&item.exp_avg_absmax, exp_avg);
      atomicMax(&item.exp_avg_sq_absmax, exp_avg_sq);
    }
  }
}

Body body_of(const AdamItem& item) {
  using enum DType;
  const auto moments = [&](DType type) { return item.exp_avg_type == type && item.exp_avg_sq_type == type; };
  const bool sixteen = item.param_type == kBF16 && item.grad_type == kBF16;
  if (item.weight == Weight::kParam && item.param_type == kF32 && moments(kF32)) {
    if (item.grad_type == kF32) return Body::kF32;
    if (item.grad_type == kBF16) return Body::kMasterOf8Bits;
  }
  if (sixteen && item.weight == Weight::kMaster && moments(kF32)) return Body::kMaster;
  if (sixteen && item.weight == Weight::kHalves && moments(kF32)) return Body::kRemainder;
  if (sixteen && item.weight == Weight::kMaster && moments(kBF16)) return Body::kMasterBf16Moments;
  return Body::kAnyTypes;
}

AdamItem item_of(const AdamTensor& tensor) {
  const auto scale_of = [](const MatrixView& moment, float* scale) { return moment_limit(moment.dtype) > 0.0f ? scale : nullptr; };
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
                .param_type = tensor.param.dtype,
                .grad_type = tensor.grad.dtype,
                .exp_avg_type = tensor.exp_avg.dtype,
                .exp_avg_sq_type = tensor.exp_avg_sq.dtype};
  if (tensor.master.data != nullptr) item.weight = tensor.master.dtype == DType::kI16 ? Weight::kHalves : Weight::kMaster;
  const bool vectors = takes_vectors(tensor.param) && takes_vectors(tensor.grad) && takes_vectors(tensor.exp_avg) &&
                       takes_vectors(tensor.exp_avg_sq) && (tensor.master.data == nullptr || takes_vectors(tensor.master));
  item.body = vectors ? body_of(item) : Body::kStrided;
  return item;
}

struct AdamLists {
  explicit AdamLists(CudaContext&) {}
  PieceList<AdamItem> items;
};

}  // namespace

void adam(const AdamArgs& args, ExecContext& context) {
  CudaContext& card = cuda_context(context);
  PieceList<AdamItem>& list = card.kept<AdamLists>().items;
  list.clear();
  bool measures = false;
  for (const AdamTensor& tensor : args.tensors) {
    const AdamItem item = item_of(tensor);
    measures |= item.scaled();
    // A tensor without elements still gets its scales.
    list.add(item, std::max(ceil_div(item.rows * item.cols, kListPiece), std::int64_t{item.scaled()}));
  }
  if (list.empty()) return;
  // The upload is this launch's own, and so is what the measuring pass leaves in it.
  auto* const items = const_cast<AdamItem*>(card.upload(list.items()));
  const int count = static_cast<int>(list.items().size());
  const Rule rule{.learning_rate = args.learning_rate,
                  .beta1 = args.beta1,
                  .rest1 = 1.0f - args.beta1,
                  .beta2 = args.beta2,
                  .rest2 = 1.0f - args.beta2,
                  .epsilon = args.epsilon,
                  .coupled_decay = args.decoupled_decay ? 0.0f : args.weight_decay,
                  .decoupled_decay = args.decoupled_decay ? args.weight_decay : 0.0f,
                  .correction1 = args.bias_correction1,
                  .correction2 = args.bias_correction2,
                  .gradient_scale = args.gradient_scale};
  const auto blocks = static_cast<unsigned>(list.pieces());
  if (measures) {
    adam_kernel<true><<<blocks, kListThreads, 0, card.stream()>>>(items, count, rule);
    cuda_check_launch("adam_kernel, measuring");
  }
  adam_kernel<false><<<blocks, kListThreads, 0, card.stream()>>>(items, count, rule);
  cuda_check_launch("adam_kernel");
}

}  // namespace fp8lab::cuda
