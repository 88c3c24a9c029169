#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/attention/device/attention_matrix.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"

// Forward attention on Hopper's matrix units. A block computes 128 queries of a head with two warp groups of 64 each,
// and passes over the keys 128 at a time.
//
// Without a cast of P one pass with a running maximum is enough: P = exp(logit - maximum so far) is rounded to bf16 (by
// at most 2^-8 of itself), and rows are divided by their sum at the end. With a cast, P must be relative to the final
// lse, so a first pass computes lse. The quantized data and the cast P are exact in bf16, and products are summed in
// FP32: the `cpu` kernel's arithmetic except for the order of sums.
namespace fp8lab::cuda {
namespace {

using namespace tensor_attention;

constexpr int kQueries = 128;
constexpr int kKeys = 128;
constexpr float kLn2 = 0x1.62e430p-1f;

template <int Dim>
constexpr std::uint32_t kTileBytes = kKeys * Dim * 2;
/// Q, two stages of K and of V, and 1024 bytes to align them.
template <int Dim>
constexpr std::uint32_t kSharedBytes = 5 * kTileBytes<Dim> + 1024;

/// The two rows that a thread holds of a 64 x 128 tile of logits.
struct Place {
  int first_row;  ///< first row of the warp group
  int row;        ///< first row of the thread; its second is 8 further
  int pair_col;   ///< column of the thread's first pair in a block of 8 columns

  __device__ explicit Place(int first_query) {
    const int thread = static_cast<int>(threadIdx.x);
    first_row = first_query + 64 * (thread / wgmma::kGroupThreads);
    row = first_row + 16 * (thread % wgmma::kGroupThreads / 32) + thread % 32 / 4;
    pair_col = 2 * (thread % 4);
  }
};

/// Sets logits to -inf if a key is masked or beyond the sequence.
template <int Sums>
__device__ void mask_logits(float (&logits)[Sums], const Place& place, int first_key, const AttentionShape& shape) {
  const int seq = static_cast<int>(shape.seq);
  const bool diagonal = shape.causal && first_key + kKeys - 1 > place.first_row;
  // A key of the tile has left the window of the warp group's last query.
  const bool edge = shape.window != 0 && first_key <= place.first_row + 63 - static_cast<int>(shape.window);
  if (!diagonal && !edge && first_key + kKeys <= seq) return;
#pragma unroll
  for (int i = 0; i < Sums; ++i) {
    const int key = first_key + 8 * (i / 4) + place.pair_col + i % 2;
    const int query = place.row + (i % 4 / 2) * 8;
    if (key >= seq || (shape.causal && key > query)) logits[i] = kMinusInfinity;
  }
  if (!edge) return;
#pragma unroll
  for (int i = 0; i < Sums; ++i) {
    const int key = first_key + 8 * (i / 4) + place.pair_col + i % 2;
    const int query = place.row + (i % 4 / 2) * 8;
    if (key <= query - static_cast<int>(shape.window)) logits[i] = kMinusInfinity;
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

/// The running maximum and sum of a thread's two rows: the maximum in units of the logits before their factor, the sum
/// relative to it.
struct RunningSum {
  float maximum[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};  ///< over this thread's columns only

  /// Logits become P relative to the new maximum; earlier sums must be multiplied by `correction`.
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
  /// Natural logarithm of the entire row's sum; -inf if every logit is -inf.
  __device__ float lse(int half, float factor) const {
    const float total = quad_sum(sum[half]);
    return maximum[half] == kMinusInfinity && total == 0.0f ? kMinusInfinity
                                                            : __fmaf_rn(maximum[half], factor, log2f(total)) * kLn2;
  }
};

template <int Sums>
__device__ void drop_out(float (&p)[Sums], const AttentionDropout& dropout, const Place& place, int first_key) {
#pragma unroll
  for (int i = 0; i < Sums; ++i)
    p[i] *= dropout.factor(place.row + (i % 4 / 2) * 8, first_key + 8 * (i / 4) + place.pair_col + i % 2);
}

template <int Dim, bool Casts, bool Drops>
__global__ void __launch_bounds__(kThreads, 1) attention_tensor_forward_kernel(TensorForward call, int query_tiles) {
  extern __shared__ std::byte dynamic_shared[];
  const std::uint32_t shared = (wgmma::shared_address(dynamic_shared) + 1023) / 1024 * 1024;
  const std::uint32_t q_tile = shared;
  const auto k_tile = [&](int t) { return shared + static_cast<std::uint32_t>(1 + t % 2) * kTileBytes<Dim>; };
  const auto v_tile = [&](int t) { return shared + static_cast<std::uint32_t>(3 + t % 2) * kTileBytes<Dim>; };

  const AttentionShape& shape = call.shape;
  // Consecutive blocks belong to one head, so that blocks that run together share keys; within a head the longest rows
  // come first.
  const int tile = query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles,
            job = static_cast<int>(blockIdx.x) / query_tiles;
  const int seq = static_cast<int>(shape.seq), heads = static_cast<int>(shape.heads);
  const int head = job % heads, sequence = job / heads;
  const int kv_head = head / (heads / static_cast<int>(shape.kv_heads));
  const int first_query = tile * kQueries;
  const int limit = shape.causal ? min(first_query + kQueries, seq) : seq;
  const int key_tiles = (limit + kKeys - 1) / kKeys;
  const int first_tile = static_cast<int>(shape.first_key(first_query)) / kKeys;
  const HeadRows k_rows(call.k, shape, sequence, kv_head), v_rows(call.v, shape, sequence, kv_head);
  const Place place(first_query);
  const std::uint32_t q_group = q_tile + threadIdx.x / wgmma::kGroupThreads * 64 * wgmma::kRowBytes;
  const float factor = logit_factor_of(call.q, call.k, shape);
  float* const lse_row =
      reinterpret_cast<float*>(call.lse.data) + (std::int64_t{sequence} * heads + head) * call.lse.row_stride;

  float logits[kKeys / 2];
  const auto copy_keys = [&](int t) {
    if (t < key_tiles) copy_rows_async<kKeys, Dim, 8>(k_rows, t * kKeys, seq, k_tile(t));
  };
  const auto copy_values = [&](int t) {
    if (t < key_tiles) copy_rows_async<kKeys, Dim, 8>(v_rows, t * kKeys, seq, v_tile(t));
  };
  // Waits until the copies in flight have arrived for the entire block, and until the entire block is done with the
  // data before them.
  const auto arrive = [] {
    wgmma::wait_copies<0>();
    wgmma::publish();
    __syncthreads();
  };
  const auto multiply_keys = [&](int t) {
    multiply_rows<Dim, kQueries, kKeys>(logits, q_group, k_tile(t));
    wgmma::commit();
  };
  const auto take_logits = [&](int t) {
    wgmma::settle(logits);
    mask_logits(logits, place, t * kKeys, shape);
  };

  copy_rows_async<kQueries, Dim, 8>(HeadRows(call.q, shape, sequence, head), first_query, seq, q_tile);
  copy_keys(first_tile);
  RunningSum running;
  float lse[2];  // base 2
  if constexpr (Casts) {
    wgmma::commit_copies();
    for (int t = first_tile; t < key_tiles; ++t) {
      arrive();
      copy_keys(t + 1);
      wgmma::commit_copies();
      wgmma::fence();
      multiply_keys(t);
      wgmma::wait<0>();
      take_logits(t);
      float correction[2];
      running.add(logits, factor, correction);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float natural = running.lse(half, factor);
      const int query = place.row + 8 * half;
      // Rows behind the last query get P = 0, so that its amax does not include them.
      lse[half] = query < seq ? shift_of(natural) * kLog2E : float_from_bits(kFloatInfinityBits);
      if (threadIdx.x % 4 == 0 && query < seq) lse_row[query] = natural;
    }
    __syncthreads();
    copy_keys(first_tile);
  }

  const AttentionDropout dropout(shape, sequence, head);
  PairCast s_cast(call.s);
  float o[Dim / 2] = {}, correction[2] = {1.0f, 1.0f};
  std::uint32_t p[kKeys / 16][4];
  // Logits become P; O so far must be multiplied by `correction`.
  const auto exponentiate = [&](int t) {
    take_logits(t);
    if constexpr (Casts) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) logits[i] = exponential2(__fmaf_rn(logits[i], factor, -lse[i % 4 / 2]));
    } else {
      running.add(logits, factor, correction);
    }
    if constexpr (Drops) drop_out(logits, dropout, place, t * kKeys);
    if constexpr (Casts) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 2) s_cast.apply(logits[i], logits[i + 1]);
    }
  };
  const auto pack_p = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = wgmma::pack(logits[2 * i], logits[2 * i + 1]);
  };

  // While the matrix units add P V of tile t, the CUDA cores exponentiate tile t + 1, and the copies of the keys of t +
  // 2 and the values of t + 1 are in flight.
  copy_values(first_tile);
  wgmma::commit_copies();
  arrive();
  copy_keys(first_tile + 1);
  wgmma::commit_copies();
  wgmma::fence();
  multiply_keys(first_tile);
  wgmma::wait<0>();
  exponentiate(first_tile);
  pack_p();
  for (int t = first_tile; t + 1 < key_tiles; ++t) {
    arrive();
    copy_keys(t + 2);
    copy_values(t + 1);
    wgmma::commit_copies();
    wgmma::fence();
    multiply_keys(t + 1);
    add_fragments<kKeys, kKeys>(o, p, v_tile(t));
    wgmma::commit();
    wgmma::wait<1>();
    exponentiate(t + 1);
    wgmma::wait<0>();
    wgmma::settle(o);
    if constexpr (!Casts) {
#pragma unroll
      for (int i = 0; i < Dim / 2; ++i) o[i] *= correction[i % 4 / 2];
    }
    pack_p();
  }
  arrive();
  wgmma::fence();
  add_fragments<kKeys, kKeys>(o, p, v_tile(key_tiles - 1));
  wgmma::commit();
  wgmma::wait<0>();
  wgmma::settle(o);

  const float o_factor = joint_factor(s_cast.scale_inv(), scale_inv_of(call.v));
  if constexpr (!Casts) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float natural = running.lse(half, factor);
      const float total = quad_sum(running.sum[half]);
      float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      if (call.sinks.data != nullptr) {
        const MergedLogSums merged = merge_log_sums(natural, load_element(call.sinks, 0, head));
        natural = merged.log_sum;
        inverse *= merged.share_of_a;
      }
      const int query = place.row + 8 * half;
      if (threadIdx.x % 4 == 0 && query < seq) lse_row[query] = natural;
#pragma unroll
      for (int block = 0; block < Dim / 8; ++block)
#pragma unroll
        for (int e = 0; e < 2; ++e) o[4 * block + 2 * half + e] *= inverse;
    }
  }
  store_sums(o, call.o, shape, sequence, head, place.first_row, o_factor);
  s_cast.store_amax(call.s);
}

/// Created once per GPU: allows the kernel its dynamic shared memory.
template <int Dim, bool Casts, bool Drops>
struct Prepared {
  explicit Prepared(CudaContext&) {
    cuda_check(cudaFuncSetAttribute(attention_tensor_forward_kernel<Dim, Casts, Drops>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Dim>),
               "cudaFuncSetAttribute");
  }
};

template <int Dim, bool Casts, bool Drops>
void launch(const TensorForward& call, CudaContext& context) {
  context.kept<Prepared<Dim, Casts, Drops>>();
  const AttentionShape& shape = call.shape;
  const std::int64_t query_tiles = (shape.seq + kQueries - 1) / kQueries;
  attention_tensor_forward_kernel<Dim, Casts, Drops>
      <<<static_cast<unsigned>(query_tiles * shape.heads * shape.batch), kThreads, kSharedBytes<Dim>,
         context.stream()>>>(call, static_cast<int>(query_tiles));
  cuda_check_launch("attention_tensor_forward_kernel");
}

template <int Dim>
void launch(const TensorForward& call, CudaContext& context) {
  const bool casts = call.s.scale != nullptr, drops = call.shape.dropout > 0.0f;
  if (casts) {
    drops ? launch<Dim, true, true>(call, context) : launch<Dim, true, false>(call, context);
  } else {
    drops ? launch<Dim, false, true>(call, context) : launch<Dim, false, false>(call, context);
  }
}

}  // namespace

void launch_tensor_forward(const TensorForward& call, CudaContext& context) {
  call.shape.head_dim == 128 ? launch<128>(call, context) : launch<64>(call, context);
}

}  // namespace fp8lab::cuda
