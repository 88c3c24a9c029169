#include "backend/cuda/attention_tensor.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/attention_matrix.cuh"

// The gradient of attention on Hopper's matrix units: one launch for dQ by tiles of queries, one for dK and dV by tiles of keys. Each
// computes P and dS anew from Q, K, dO, V and lse: seven products instead of five, for which no two blocks add to one sum and nothing is
// written down, so that runs are bitwise equal and no S x S exists. P and dS go from one product into the next in registers: blocks of
// keys compute the transposed logits, whose fragments are P^T's.
//
// Without casts P and dS are rounded to bf16, 2^-8 of themselves at most; codes and cast values are exact in bf16. Products are summed
// in FP32: the `cpu` kernel's arithmetic but for the order of sums.
namespace fp8lab::cuda {
namespace {

using namespace tensor_attention;

constexpr int kResident = 128;  // rows that a block keeps: queries for dQ, keys for dK and dV
constexpr int kPassing = 64;    // rows that pass by at a time

template <int Dim>
constexpr std::uint32_t kResidentBytes = kResident * Dim * 2;
template <int Dim>
constexpr std::uint32_t kPassingBytes = kPassing * Dim * 2;
constexpr std::uint32_t kRowsBytes = kPassing * 2 * sizeof(float);
constexpr int kStages = 3;      // one being added, one being differentiated, one on its way
/// Two resident tiles, and stages of two passing ones and of two floats a row; room to align.
template <int Dim>
constexpr std::uint32_t kSharedBytes = 2 * kResidentBytes<Dim> + kStages * (2 * kPassingBytes<Dim> + kRowsBytes) + 1024;

/// Addresses in shared memory.
template <int Dim>
struct Tiles {
  std::uint32_t base;

  __device__ explicit Tiles(const void* shared) : base((wgmma::shared_address(shared) + 1023) / 1024 * 1024) {}
  __device__ std::uint32_t resident(int which) const { return base + static_cast<std::uint32_t>(which) * kResidentBytes<Dim>; }
  __device__ std::uint32_t passing(int tile, int which) const {
    return base + 2 * kResidentBytes<Dim> + static_cast<std::uint32_t>(2 * (tile % kStages) + which) * kPassingBytes<Dim>;
  }
  __device__ std::uint32_t rows(int tile) const {
    return base + 2 * kResidentBytes<Dim> + 2 * kStages * kPassingBytes<Dim> + static_cast<std::uint32_t>(tile % kStages) * kRowsBytes;
  }
};

/// lse in base 2 and sum of dO * O of two neighbouring queries: (lse, sum, lse, sum).
__device__ float4 two_rows(std::uint32_t address) {
  float4 rows;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(rows.x), "=f"(rows.y), "=f"(rows.z), "=f"(rows.w)
               : "r"(address));
  return rows;
}

struct Factors {
  float logit;   ///< makes logits in units of 2^ of a product of Q and K
  float grad_p;  ///< makes dP of a product of dO and V

  __device__ explicit Factors(const TensorBackward& call)
      : logit(joint_factor(scale_inv_of(call.q), scale_inv_of(call.k), call.shape.softmax_scale) * kLog2E),
        grad_p(joint_factor(scale_inv_of(call.grad_o), scale_inv_of(call.v))) {}
};

/// Logits and products dO V^T of a tile become P as dV's product takes it, and dS. `Transposed`: rows are keys.
template <bool Transposed, bool Casts, bool Drops>
struct Softmax {
  const TensorBackward& call;
  Factors factors;
  AttentionDropout dropout;
  PairCast s_cast;
  PairCast grad_p_cast;

  __device__ Softmax(const TensorBackward& c, std::int64_t sequence, std::int64_t head)
      : call(c), factors(c), dropout(c.shape, sequence, head), s_cast(c.s), grad_p_cast(c.grad_p) {}

  /// A thread's element i is at row `row` + (i % 4 / 2) * 8, column `col` + 8 * (i / 4) + i % 2. `rows_of(i)` tells two_rows() of the
  /// queries of elements i and i + 1. `inside` holds where no element of the warp group is masked.
  template <class Rows>
  __device__ void apply(float (&p)[kPassing / 2], float (&grad)[kPassing / 2], int row, int col, bool inside, Rows&& rows_of) {
    const int seq = static_cast<int>(call.shape.seq);
#pragma unroll
    for (int i = 0; i < kPassing / 2; i += 2) {
      float weight[2], slope[2];
      const float4 rows = rows_of(i);
      const float lse[2] = {rows.x, rows.z}, dot[2] = {rows.y, rows.w};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = row + (i % 4 / 2) * 8, c = col + 8 * (i / 4) + e;
        const int query = Transposed ? c : r, key = Transposed ? r : c;
        weight[e] = exponential2(__fmaf_rn(p[i + e], factors.logit, -lse[e]));
        if (!inside && (key >= seq || query >= seq || (call.shape.causal && key > query))) weight[e] = 0.0f;
        if constexpr (Drops) {
          const float kept = dropout.factor(query, key);
          slope[e] = weight[e] * __fmaf_rn(grad[i + e] * factors.grad_p, kept, -dot[e]);
          weight[e] *= kept;
        } else {
          slope[e] = weight[e] * __fmaf_rn(grad[i + e], factors.grad_p, -dot[e]);
        }
      }
      if constexpr (Casts) {
        if (s_cast.active()) s_cast.apply(weight[0], weight[1]);
        if (grad_p_cast.active()) grad_p_cast.apply(slope[0], slope[1]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        p[i + e] = weight[e];
        grad[i + e] = slope[e];
      }
    }
  }
};

__device__ void pack_fragments(const float (&values)[kPassing / 2], std::uint32_t (&fragments)[kPassing / 16][4]) {
#pragma unroll
  for (int i = 0; i < kPassing / 4; ++i) fragments[i / 4][i % 4] = wgmma::pack(values[2 * i], values[2 * i + 1]);
}

/// Goes through `count` tiles, at least one: `copy(t)` starts tile t on its way, `multiply(t)` starts its logits and dO V^T,
/// `differentiate(t)` makes P and dS of them, `pack()` their fragments, and `add(t)` starts the products with those. While the matrix units
/// add tile t, the other units differentiate tile t + 1 and tile t + 2 arrives.
template <class Copy, class Multiply, class Differentiate, class Pack, class Add, class Settle>
__device__ void pass_tiles(int count, Copy&& copy, Multiply&& multiply, Differentiate&& differentiate, Pack&& pack, Add&& add,
                           Settle&& settle) {
  // Every tile is a group of copies, even where there is none, so that the groups' number says which have arrived.
  const auto start_copy = [&](int t) {
    if (t < count) copy(t);
    wgmma::commit_copies();
  };
  const auto arrive = [] {
    wgmma::wait_copies<0>();
    wgmma::publish();
    __syncthreads();
  };
  start_copy(0);
  arrive();
  start_copy(1);
  wgmma::fence();
  multiply(0);
  wgmma::commit();
  wgmma::wait<0>();
  differentiate(0);
  pack();
  for (int t = 0; t + 1 < count; ++t) {
    arrive();  // and everyone has added tile t - 1, in whose place t + 2 goes
    start_copy(t + 2);
    wgmma::fence();
    multiply(t + 1);
    wgmma::commit();
    add(t);
    wgmma::commit();
    wgmma::wait<1>();
    differentiate(t + 1);
    wgmma::wait<0>();
    settle();
    pack();
  }
  wgmma::fence();
  add(count - 1);
  wgmma::commit();
  wgmma::wait<0>();
  settle();
}

template <int Dim, bool Casts, bool Drops>
__global__ void __launch_bounds__(kThreads, 1) attention_tensor_grad_q_kernel(TensorBackward call, int query_tiles) {
  extern __shared__ std::byte dynamic_shared[];
  const Tiles<Dim> tiles(dynamic_shared);
  const AttentionShape& shape = call.shape;
  const int tile = query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles, job = static_cast<int>(blockIdx.x) / query_tiles;
  const int seq = static_cast<int>(shape.seq), heads = static_cast<int>(shape.heads);
  const int head = job % heads, sequence = job / heads;
  const int kv_head = head / (heads / static_cast<int>(shape.kv_heads));
  const int first_query = tile * kResident;
  const int limit = shape.causal ? min(first_query + kResident, seq) : seq;
  const int key_tiles = (limit + kPassing - 1) / kPassing;
  const HeadRows k_rows(call.k, shape, sequence, kv_head), v_rows(call.v, shape, sequence, kv_head);

  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / wgmma::kGroupThreads;
  const int first_row = first_query + 64 * group;
  const int row = first_row + 16 * (thread % wgmma::kGroupThreads / 32) + thread % 32 / 4;
  const std::uint32_t group_offset = static_cast<std::uint32_t>(group * 64 * wgmma::kRowBytes);
  Softmax<false, Casts, Drops> softmax(call, sequence, head);
  float2 rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = row + 8 * half;
    const std::int64_t line = std::int64_t{sequence} * heads + head;
    rows[half] = query < seq ? reinterpret_cast<const float2*>(call.rows)[line * seq + query] : make_float2(0.0f, 0.0f);
  }

  copy_rows_async<kResident, Dim, 1>(HeadRows(call.q, shape, sequence, head), first_query, seq, tiles.resident(0));
  copy_rows_async<kResident, Dim, 1>(HeadRows(call.grad_o, shape, sequence, head), first_query, seq, tiles.resident(1));
  float grad_q[Dim / 2] = {}, p[kPassing / 2], grad[kPassing / 2];
  std::uint32_t fragments[kPassing / 16][4];
  pass_tiles(
      key_tiles,
      [&](int t) {
        copy_rows_async<kPassing, Dim, 1>(k_rows, t * kPassing, seq, tiles.passing(t, 0));
        copy_rows_async<kPassing, Dim, 1>(v_rows, t * kPassing, seq, tiles.passing(t, 1));
      },
      [&](int t) {
        multiply_rows<Dim, kResident, kPassing>(p, tiles.resident(0) + group_offset, tiles.passing(t, 0));
        multiply_rows<Dim, kResident, kPassing>(grad, tiles.resident(1) + group_offset, tiles.passing(t, 1));
      },
      [&](int t) {
        wgmma::settle(p);
        wgmma::settle(grad);
        const int first_key = t * kPassing;
        const bool inside = first_key + kPassing <= seq && first_row + 64 <= seq &&
                            !(shape.causal && first_key + kPassing - 1 > first_row);
        softmax.apply(p, grad, row, first_key + 2 * (thread % 4), inside, [&](int i) {
          const float2 of = rows[i % 4 / 2];
          return make_float4(of.x, of.y, of.x, of.y);
        });
      },
      [&] { pack_fragments(grad, fragments); },
      [&](int t) { add_fragments<kPassing, kPassing>(grad_q, fragments, tiles.passing(t, 0)); },
      [&] { wgmma::settle(grad_q); });
  store_sums(grad_q, call.grad_q, shape, sequence, head, first_row,
             joint_factor(softmax.grad_p_cast.scale_inv(), scale_inv_of(call.k), shape.softmax_scale));
}

template <int Dim, bool Casts, bool Drops>
__global__ void __launch_bounds__(kThreads, 1) attention_tensor_grad_kv_kernel(TensorBackward call, int key_tiles) {
  extern __shared__ std::byte dynamic_shared[];
  const Tiles<Dim> tiles(dynamic_shared);
  const AttentionShape& shape = call.shape;
  // The first keys have the most queries under the causal mask.
  const int tile = static_cast<int>(blockIdx.x) % key_tiles, job = static_cast<int>(blockIdx.x) / key_tiles;
  const int seq = static_cast<int>(shape.seq), kv_heads = static_cast<int>(shape.kv_heads);
  const int kv_head = job % kv_heads, sequence = job / kv_heads;
  const int members = static_cast<int>(shape.heads) / kv_heads;
  const int first_key = tile * kResident;
  const int first_tile = shape.causal ? first_key / kPassing : 0;
  const int tiles_per_head = (seq + kPassing - 1) / kPassing - first_tile;
  // Tiles of queries of one head of the group after the other.
  const auto head_of = [&](int t) { return kv_head * members + t / tiles_per_head; };
  const auto query_of = [&](int t) { return (first_tile + t % tiles_per_head) * kPassing; };

  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / wgmma::kGroupThreads;
  const int first_row = first_key + 64 * group;
  const int row = first_row + 16 * (thread % wgmma::kGroupThreads / 32) + thread % 32 / 4;
  const std::uint32_t group_offset = static_cast<std::uint32_t>(group * 64 * wgmma::kRowBytes);
  copy_rows_async<kResident, Dim, 1>(HeadRows(call.k, shape, sequence, kv_head), first_key, seq, tiles.resident(0));
  copy_rows_async<kResident, Dim, 1>(HeadRows(call.v, shape, sequence, kv_head), first_key, seq, tiles.resident(1));
  Softmax<true, Casts, Drops> softmax(call, sequence, kv_head * members);
  float grad_k[Dim / 2] = {}, grad_v[Dim / 2] = {}, p[kPassing / 2], grad[kPassing / 2];
  std::uint32_t p_fragments[kPassing / 16][4], grad_fragments[kPassing / 16][4];
  pass_tiles(
      members * tiles_per_head,
      [&](int t) {
        const int head = head_of(t), first_query = query_of(t);
        copy_rows_async<kPassing, Dim, 1>(HeadRows(call.q, shape, sequence, head), first_query, seq, tiles.passing(t, 0));
        copy_rows_async<kPassing, Dim, 1>(HeadRows(call.grad_o, shape, sequence, head), first_query, seq, tiles.passing(t, 1));
        if (thread >= kPassing) return;
        const bool valid = first_query + thread < seq;
        const std::int64_t line = std::int64_t{sequence} * shape.heads + head;
        wgmma::copy_pair_async(tiles.rows(t) + static_cast<std::uint32_t>(thread) * 8,
                               call.rows + 2 * (line * seq + (valid ? first_query + thread : 0)), valid);
      },
      [&](int t) {
        multiply_rows<Dim, kResident, kPassing>(p, tiles.resident(0) + group_offset, tiles.passing(t, 0));
        multiply_rows<Dim, kResident, kPassing>(grad, tiles.resident(1) + group_offset, tiles.passing(t, 1));
      },
      [&](int t) {
        wgmma::settle(p);
        wgmma::settle(grad);
        const int first_query = query_of(t);
        if constexpr (Drops) softmax.dropout = AttentionDropout(shape, sequence, head_of(t));
        const bool inside = first_query + kPassing <= seq && first_row + 64 <= seq &&
                            !(shape.causal && first_row + 63 > first_query);
        const std::uint32_t rows = tiles.rows(t) + static_cast<std::uint32_t>(thread % 4) * 16;
        softmax.apply(p, grad, row, first_query + 2 * (thread % 4), inside,
                      [&](int i) { return two_rows(rows + static_cast<std::uint32_t>(i / 4) * 64); });
      },
      [&] {
        pack_fragments(p, p_fragments);
        pack_fragments(grad, grad_fragments);
      },
      [&](int t) {
        add_fragments<kPassing, kPassing>(grad_v, p_fragments, tiles.passing(t, 1));
        add_fragments<kPassing, kPassing>(grad_k, grad_fragments, tiles.passing(t, 0));
      },
      [&] {
        wgmma::settle(grad_v);
        wgmma::settle(grad_k);
      });
  store_sums(grad_k, call.grad_k, shape, sequence, kv_head, first_row,
             joint_factor(softmax.grad_p_cast.scale_inv(), scale_inv_of(call.q), shape.softmax_scale));
  store_sums(grad_v, call.grad_v, shape, sequence, kv_head, first_row,
             joint_factor(softmax.s_cast.scale_inv(), scale_inv_of(call.grad_o)));
  softmax.s_cast.store_amax(call.s);
  softmax.grad_p_cast.store_amax(call.grad_p);
}

/// One warp a row.
__global__ void __launch_bounds__(kThreads) attention_tensor_rows_kernel(TensorBackward call) {
  const AttentionShape& shape = call.shape;
  const std::int64_t line = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (line >= shape.batch * shape.heads * shape.seq) return;
  // Rows in the order in which they lie in memory.
  const std::int64_t head = line % shape.heads, token = line / shape.heads;
  double dot = 0;  // dS is a difference with it, so its error would not stay small against dS
  for (std::int64_t d = threadIdx.x % 32; d < shape.head_dim; d += 32)
    dot += static_cast<double>(load_element(call.o_codes.values, token, head * shape.head_dim + d)) *
           static_cast<double>(load_element(call.grad_o_codes.values, token, head * shape.head_dim + d));
  for (int distance = 16; distance > 0; distance /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, distance);
  if (threadIdx.x % 32 != 0) return;
  const double factor = joint_factor(cuda::scale_inv_of(call.grad_o_codes), cuda::scale_inv_of(call.o_codes));
  const std::int64_t query = token / shape.batch, sequence = token % shape.batch;
  const std::int64_t row = sequence * shape.heads + head;
  const float lse = reinterpret_cast<const float*>(call.lse.data)[row * call.lse.row_stride + query];
  reinterpret_cast<float2*>(call.rows)[row * shape.seq + query] =
      make_float2(shift_of(lse) * kLog2E, static_cast<float>(dot * factor));
}

/// Once per card: the kernels may use their shared memory.
template <int Dim, bool Casts, bool Drops>
struct Prepared {
  explicit Prepared(CudaContext&) {
    cuda_check(cudaFuncSetAttribute(attention_tensor_grad_q_kernel<Dim, Casts, Drops>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes<Dim>),
               "cudaFuncSetAttribute");
    cuda_check(cudaFuncSetAttribute(attention_tensor_grad_kv_kernel<Dim, Casts, Drops>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes<Dim>),
               "cudaFuncSetAttribute");
  }
};

template <int Dim, bool Casts, bool Drops>
void launch(const TensorBackward& call, CudaContext& card) {
  card.kept<Prepared<Dim, Casts, Drops>>();
  const AttentionShape& shape = call.shape;
  const std::int64_t tiles = (shape.seq + kResident - 1) / kResident;
  attention_tensor_grad_q_kernel<Dim, Casts, Drops><<<static_cast<unsigned>(tiles * shape.heads * shape.batch), kThreads, kSharedBytes<Dim>,
                                               card.stream()>>>(call, static_cast<int>(tiles));
  cuda_check_launch("attention_tensor_grad_q_kernel");
  attention_tensor_grad_kv_kernel<Dim, Casts, Drops><<<static_cast<unsigned>(tiles * shape.kv_heads * shape.batch), kThreads,
                                                kSharedBytes<Dim>, card.stream()>>>(call, static_cast<int>(tiles));
  cuda_check_launch("attention_tensor_grad_kv_kernel");
}

template <int Dim>
void launch(const TensorBackward& call, CudaContext& card) {
  const bool casts = call.s.scale != nullptr || call.grad_p.scale != nullptr, drops = call.shape.dropout > 0.0f;
  if (casts) {
    drops ? launch<Dim, true, true>(call, card) : launch<Dim, true, false>(call, card);
  } else {
    drops ? launch<Dim, false, true>(call, card) : launch<Dim, false, false>(call, card);
  }
}

}  // namespace

void launch_tensor_backward(const TensorBackward& call, CudaContext& card) {
  const AttentionShape& shape = call.shape;
  const std::int64_t lines = shape.batch * shape.heads * shape.seq;
  attention_tensor_rows_kernel<<<static_cast<unsigned>((lines * 32 + kThreads - 1) / kThreads), kThreads, 0, card.stream()>>>(
      call);
  cuda_check_launch("attention_tensor_rows_kernel");
  call.shape.head_dim == 128 ? launch<128>(call, card) : launch<64>(call, card);
}

}  // namespace fp8lab::cuda
