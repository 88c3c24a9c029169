#include "backend/cuda/attention_tensor.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/attention_matrix.cuh"

// Forward attention on Hopper's matrix units. A block takes 128 queries of a head, two warp groups of 64, and passes over the keys
// 128 at a time, the next tile under way while the present one is multiplied.
//
// Without a cast of P one pass with a running maximum is enough: P = exp(logit - maximum so far) is rounded to bf16 (2^-8 of itself at
// most) and rows are divided by their sum at the end. With a cast, P must be relative to the final lse, so a first pass finds lse. The
// codes and the cast P are exact in bf16, products are summed in FP32: the `cpu` kernel's arithmetic but for the order of sums.
namespace fp8lab::cuda {
namespace {

using namespace tensor_attention;

constexpr int kQueries = 128;
constexpr int kKeys = 128;
constexpr float kLn2 = 0x1.62e430p-1f;

template <int Dim>
constexpr std::uint32_t kTileBytes = kKeys * Dim * 2;
template <int Dim>
constexpr std::uint32_t kSharedBytes = 5 * kTileBytes<Dim> + 1024;  // Q, and two stages of K and V; room to align

/// A thread's two rows of a 64 x 128 tile of logits.
struct Place {
  std::int64_t first_row;  ///< of the warp group
  std::int64_t row;        ///< the first of the thread's two; the other is 8 further
  int pair_col;            ///< of the first pair in a block of 8 columns

  __device__ explicit Place(std::int64_t first_query) {
    const int thread = static_cast<int>(threadIdx.x);
    first_row = first_query + 64 * (thread / wgmma::kGroupThreads);
    row = first_row + 16 * (thread % wgmma::kGroupThreads / 32) + thread % 32 / 4;
    pair_col = 2 * (thread % 4);
  }
};

/// -inf where a key is masked or outside of the sequence.
template <int Sums>
__device__ void mask_logits(float (&logits)[Sums], const Place& place, std::int64_t first_key, const AttentionShape& shape) {
  const bool diagonal = shape.causal && first_key + kKeys - 1 > place.first_row;
  if (!diagonal && first_key + kKeys <= shape.seq) return;
#pragma unroll
  for (int i = 0; i < Sums; ++i) {
    const std::int64_t key = first_key + 8 * (i / 4) + place.pair_col + i % 2;
    const std::int64_t query = place.row + (i % 4 / 2) * 8;
    if (key >= shape.seq || (shape.causal && key > query)) logits[i] = kMinusInfinity;
  }
}

__device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// The running maximum and sum of a thread's two rows, in units of the logits before their factor and of 2^.
struct RunningSum {
  float maximum[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};  ///< of this thread's columns alone

  /// Logits become P relative to the new maximum; `correction` is what earlier sums are to be multiplied with.
  template <int Sums>
  __device__ void add(float (&logits)[Sums], float factor, float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum[half];
#pragma unroll
      for (int block = 0; block < Sums / 4; ++block)
        largest = fmaxf(largest, fmaxf(logits[4 * block + 2 * half], logits[4 * block + 2 * half + 1]));
      largest = quad_max(largest);
      const float shift = largest == kMinusInfinity ? 0.0f : largest * factor;
      correction[half] = exponential2(__fmaf_rn(maximum[half], factor, -shift));
      maximum[half] = largest;
      float added = 0.0f;
#pragma unroll
      for (int block = 0; block < Sums / 4; ++block)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& logit = logits[4 * block + 2 * half + e];
          logit = exponential2(__fmaf_rn(logit, factor, -shift));
          added += logit;
        }
      sum[half] = __fmaf_rn(sum[half], correction[half], added);
    }
  }
  /// Log of the whole row's sum, base e; -inf where every logit is.
  __device__ float lse(int half, float factor) const {
    const float total = quad_sum(sum[half]);
    return maximum[half] == kMinusInfinity && total == 0.0f ? kMinusInfinity
                                                            : __fmaf_rn(maximum[half], factor, log2f(total)) * kLn2;
  }
};

template <int Sums>
__device__ void drop_out(float (&p)[Sums], const AttentionDropout& dropout, const Place& place, std::int64_t first_key) {
#pragma unroll
  for (int i = 0; i < Sums; ++i) p[i] *= dropout.factor(place.row + (i % 4 / 2) * 8, first_key + 8 * (i / 4) + place.pair_col + i % 2);
}

template <int Dim, bool Casts, bool Drops>
__global__ void __launch_bounds__(kThreads, 1) attention_tensor_forward_kernel(TensorForward call, int query_tiles) {
  extern __shared__ std::byte dynamic_shared[];
  const std::uint32_t shared = (wgmma::shared_address(dynamic_shared) + 1023) / 1024 * 1024;
  const std::uint32_t q_tile = shared;
  const auto k_tile = [&](std::int64_t tile) { return shared + (1 + 2 * static_cast<std::uint32_t>(tile & 1)) * kTileBytes<Dim>; };
  const auto v_tile = [&](std::int64_t tile) { return k_tile(tile) + kTileBytes<Dim>; };

  const AttentionShape& shape = call.shape;
  // Heads in turn, so that blocks at work together share keys; the longest rows of each first.
  const std::int64_t tile = query_tiles - 1 - blockIdx.x % query_tiles, job = blockIdx.x / query_tiles;
  const std::int64_t head = job % shape.heads, sequence = job / shape.heads;
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const std::int64_t first_query = tile * kQueries;
  const std::int64_t limit = shape.causal ? min(first_query + kQueries, shape.seq) : shape.seq;
  const std::int64_t key_tiles = (limit + kKeys - 1) / kKeys;
  const HeadRows k_rows(call.k, shape, sequence, kv_head), v_rows(call.v, shape, sequence, kv_head);
  const Place place(first_query);
  const std::uint32_t q_group = q_tile + threadIdx.x / wgmma::kGroupThreads * 64 * wgmma::kRowBytes;
  const float logit_factor = joint_factor(scale_inv_of(call.q), scale_inv_of(call.k), shape.softmax_scale);
  const float factor = logit_factor * kLog2E;
  float* const lse_row = reinterpret_cast<float*>(call.lse.data) + (sequence * shape.heads + head) * call.lse.row_stride;

  float logits[kKeys / 2];
  const auto multiply_keys = [&](std::int64_t at) {
    wgmma::fence();
    multiply_rows<Dim, kQueries, kKeys>(logits, q_group, k_tile(at));
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::settle(logits);
    mask_logits(logits, place, at * kKeys, shape);
  };
  // Waits for tile `at` and starts on the next one, in the place of the one before.
  const auto next_tile = [&](std::int64_t at, bool values) {
    wgmma::wait_copies();
    wgmma::publish();
    __syncthreads();
    if (at + 1 < key_tiles) {
      copy_rows_async<kKeys, Dim>(k_rows, (at + 1) * kKeys, shape.seq, k_tile(at + 1));
      if (values) copy_rows_async<kKeys, Dim>(v_rows, (at + 1) * kKeys, shape.seq, v_tile(at + 1));
      wgmma::commit_copies();
    }
  };

  copy_rows_async<kQueries, Dim>(HeadRows(call.q, shape, sequence, head), first_query, shape.seq, q_tile);
  RunningSum running;
  float lse[2];  // base 2
  if constexpr (Casts) {
    copy_rows_async<kKeys, Dim>(k_rows, 0, shape.seq, k_tile(0));
    for (std::int64_t at = 0; at < key_tiles; ++at) {
      next_tile(at, false);
      multiply_keys(at);
      float correction[2];
      running.add(logits, factor, correction);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float natural = running.lse(half, factor);
      lse[half] = shift_of(natural) * kLog2E;
      const std::int64_t query = place.row + 8 * half;
      if (threadIdx.x % 4 == 0 && query < shape.seq) lse_row[query] = natural;
    }
    __syncthreads();  // everyone is done with the tiles
  }

  copy_rows_async<kKeys, Dim>(k_rows, 0, shape.seq, k_tile(0));
  copy_rows_async<kKeys, Dim>(v_rows, 0, shape.seq, v_tile(0));
  const AttentionDropout dropout(shape, sequence, head);
  PairCast s_cast(call.s);
  float o[Dim / 2] = {};
  for (std::int64_t at = 0; at < key_tiles; ++at) {
    next_tile(at, true);
    multiply_keys(at);
    if constexpr (Casts) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) logits[i] = exponential2(__fmaf_rn(logits[i], factor, -lse[i % 4 / 2]));
      if constexpr (Drops) drop_out(logits, dropout, place, at * kKeys);
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 2) s_cast.apply(logits[i], logits[i + 1]);
    } else {
      float correction[2];
      running.add(logits, factor, correction);
#pragma unroll
      for (int i = 0; i < Dim / 2; ++i) o[i] *= correction[i % 4 / 2];
      if constexpr (Drops) drop_out(logits, dropout, place, at * kKeys);
    }
    std::uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = wgmma::pack(logits[2 * i], logits[2 * i + 1]);
    wgmma::fence();
    add_fragments<kKeys, kKeys>(o, p, v_tile(at));
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::settle(o);
  }

  float o_factor = joint_factor(s_cast.scale_inv(), scale_inv_of(call.v));
  if constexpr (!Casts) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float natural = running.lse(half, factor), total = quad_sum(running.sum[half]);
      const std::int64_t query = place.row + 8 * half;
      if (threadIdx.x % 4 == 0 && query < shape.seq) lse_row[query] = natural;
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
#pragma unroll
      for (int block = 0; block < Dim / 8; ++block)
#pragma unroll
        for (int e = 0; e < 2; ++e) o[4 * block + 2 * half + e] *= inverse;
    }
  }
  store_sums(o, call.o, shape, sequence, head, place.first_row, o_factor);
  s_cast.store_amax(call.s);
}

/// Once per card: the kernel may use its shared memory.
template <int Dim, bool Casts, bool Drops>
struct Prepared {
  explicit Prepared(CudaContext&) {
    cuda_check(cudaFuncSetAttribute(attention_tensor_forward_kernel<Dim, Casts, Drops>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes<Dim>),
               "cudaFuncSetAttribute");
  }
};

template <int Dim, bool Casts, bool Drops>
void launch(const TensorForward& call, CudaContext& card) {
  card.kept<Prepared<Dim, Casts, Drops>>();
  const AttentionShape& shape = call.shape;
  const std::int64_t query_tiles = (shape.seq + kQueries - 1) / kQueries;
  attention_tensor_forward_kernel<Dim, Casts, Drops><<<static_cast<unsigned>(query_tiles * shape.heads * shape.batch), kThreads,
                                                kSharedBytes<Dim>, card.stream()>>>(call, static_cast<int>(query_tiles));
  cuda_check_launch("attention_tensor_forward_kernel");
}

template <int Dim>
void launch(const TensorForward& call, CudaContext& card) {
  const bool casts = call.s.scale != nullptr, drops = call.shape.dropout > 0.0f;
  if (casts) {
    drops ? launch<Dim, true, true>(call, card) : launch<Dim, true, false>(call, card);
  } else {
    drops ? launch<Dim, false, true>(call, card) : launch<Dim, false, false>(call, card);
  }
}

}  // namespace

void launch_tensor_forward(const TensorForward& call, CudaContext& card) {
  call.shape.head_dim == 128 ? launch<128>(call, card) : launch<64>(call, card);
}

}  // namespace fp8lab::cuda
