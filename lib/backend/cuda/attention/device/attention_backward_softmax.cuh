#pragma once

#include <cstdint>

#include "backend/cuda/attention/device/attention_backward_tiles.cuh"
#include "backend/cuda/attention/device/attention_matrix.cuh"

// The part of attention's backward that the CUDA cores compute for a tile: P and dS from products.
namespace fp8lab::cuda::attention_backward {

using namespace tensor_attention;

/// Which of P and dS are cast.
enum class Casts {
  kNone,
  kUsual,  ///< P to E4M3 and dS to E5M2
  kAny,    ///< each as its role requires
};

__device__ inline float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
  return pair;
}

__device__ inline void store_four(std::uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

inline constexpr int kElements = kQueries / 2;  // elements of a tile that a thread holds
using Elements = float[kElements];
using Fragments = std::uint32_t[kQueries / wgmma::kStepCols][4];

/// Converts a tile's products into P and dS, element by element. Rows are keys, columns are queries. Element i of a
/// thread is at row `key` + (i % 4 / 2) * 8 and column 8 * (i / 4) + i % 2, counted from the thread's first column.
template <Casts kCasts, bool Drops>
struct Softmax {
  const TensorBackward& call;
  float logit_factor;  ///< logit in base 2 (times log2 e) = this * (product of Q and K)
  PairCast s_cast;
  PairCast grad_p_cast;
  int group_key;           ///< key of the warp group's first row
  int key;                 ///< key of the thread's first row
  int column;              ///< column of the thread's first pair
  std::uint32_t kept = 0;  ///< a bit for each element that dropout keeps

  __device__ Softmax(const TensorBackward& c, int first_key)
      : call(c),
        logit_factor(logit_factor_of(c.q, c.k, c.shape)),
        s_cast(c.s),
        grad_p_cast(c.grad_p, grad_p_factor(c)),
        group_key(first_key) {
    const int thread = static_cast<int>(threadIdx.x);
    key = first_key + 16 * (thread % wgmma::kGroupThreads / 32) + thread % 32 / 4;
    column = 2 * (thread % 4);
  }

  /// Initialises sums with the `values` of their queries.
  __device__ void start(Elements& sums, std::uint32_t values) const {
#pragma unroll
    for (int block = 0; block < kElements / 4; ++block) {
      const float2 pair = load_pair(values + static_cast<std::uint32_t>(8 * block + column) * 4);
      sums[4 * block] = sums[4 * block + 2] = pair.x;
      sums[4 * block + 1] = sums[4 * block + 3] = pair.y;
    }
  }

  /// Products of Q and K, minus lse, become P in `p`, and P as the product for dV reads it (after dropout and cast) in
  /// `fragments`. Queries from seq on have an infinite lse, so their P is 0.
  __device__ void exponentiate(Elements& p, Fragments& fragments, int first_query, const Job& job, int member) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) p[i] = exponential2(p[i] * logit_factor);
    const int seq = static_cast<int>(call.shape.seq);
    if (group_key + 64 > seq || (call.shape.causal && group_key + 63 > first_query)) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int row = key + (i % 4 / 2) * 8, query = first_query + column + 8 * (i / 4) + i % 2;
        if (row >= seq || (call.shape.causal && row > query)) p[i] = 0.0f;
      }
    }
    // The warp group's first key has left the window of the tile's last query.
    const int window = static_cast<int>(call.shape.window);
    if (window != 0 && group_key + window <= first_query + kQueries - 1) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int row = key + (i % 4 / 2) * 8, query = first_query + column + 8 * (i / 4) + i % 2;
        if (row + window <= query) p[i] = 0.0f;
      }
    }
    if constexpr (Drops) {
      const AttentionDropout dropout(call.shape, job.sequence, job.kv_head * job.members + member);
      kept = 0;
#pragma unroll 1  // unrolling would take registers that the kernel does not have
      for (int i = 0; i < kElements; ++i)
        kept |= (dropout.factor(first_query + column + 8 * (i / 4) + i % 2, key + (i % 4 / 2) * 8) != 0.0f ? 1u : 0u)
                << i;
    }
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      float a = p[i] * factor_of(i), b = p[i + 1] * factor_of(i + 1);
      if constexpr (kCasts == Casts::kUsual) s_cast.apply_as<__NV_E4M3>(a, b);
      if constexpr (kCasts == Casts::kAny) {
        if (s_cast.active()) s_cast.apply(a, b);
      }
      fragments[i / 8][i / 2 % 4] = wgmma::pack(a, b);
    }
  }

  /// Products of dO and V, minus the sums of dO * O if nothing is dropped, become dS in units of grad_p_factor(), as
  /// fragments.
  __device__ void differentiate(const Elements& p, const Elements& grad, Fragments& fragments, std::uint32_t dots) {
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      float a = p[i] * grad[i], b = p[i + 1] * grad[i + 1];
      if constexpr (Drops) {
        const float2 dot = load_pair(dots + static_cast<std::uint32_t>(8 * (i / 4) + column) * 4);
        a = p[i] * __fmaf_rn(grad[i], factor_of(i), dot.x);
        b = p[i + 1] * __fmaf_rn(grad[i + 1], factor_of(i + 1), dot.y);
      }
      if constexpr (kCasts == Casts::kUsual) grad_p_cast.apply_as<__NV_E5M2>(a, b);
      if constexpr (kCasts == Casts::kAny) {
        if (grad_p_cast.active()) grad_p_cast.apply(a, b);
      }
      fragments[i / 8][i / 2 % 4] = wgmma::pack(a, b);
    }
  }

 private:
  /// The dropout factor of element i, from `kept` of the last exponentiate().
  __device__ float factor_of(int i) const {
    if constexpr (!Drops) return 1.0f;
    return (kept >> i & 1) != 0 ? 1.0f / (1.0f - call.shape.dropout) : 0.0f;
  }
};

}  // namespace fp8lab::cuda::attention_backward
