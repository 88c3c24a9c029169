#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/attention/attention_choice.h"
#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/attention/device/attention_rules.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "core/float_bits.h"

// Shared by the attention kernels on matrix units: tiles in shared memory, exponentials, casts of pairs.
namespace fp8lab::cuda::tensor_attention {

inline constexpr int kThreads = 2 * wgmma::kGroupThreads;
inline constexpr float kLog2E = 0x1.715476p+0f;

/// One head of one sequence of a WideOperand: row `position` starts `position * position_bytes` bytes after `first`.
struct HeadRows {
  const std::byte* first;
  std::int64_t position_bytes;

  __device__ HeadRows(const WideOperand& operand, const AttentionShape& shape, std::int64_t sequence, std::int64_t head)
      : first(operand.data + 2 * (sequence * operand.row_stride + head * shape.head_dim)),
        position_bytes(2 * shape.batch * operand.row_stride) {}
};

/// Starts copies of `Rows` rows of Dim columns from `first_row` on to panels at `to`; rows from `seq` on are zeros.
/// `Unroll` trades registers for instructions.
template <int Rows, int Dim, int Unroll>
__device__ inline void copy_rows_async(const HeadRows& rows, int first_row, int seq, std::uint32_t to) {
  constexpr int kUnits = Dim / 8, kPanelUnits = wgmma::kPanelCols / 8;
#pragma unroll Unroll
  for (int i = 0; i < Rows * kUnits / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = at / kUnits, unit = at % kUnits;
    const int position = first_row + row;
    const bool valid = position < seq;
    const std::byte* const from = rows.first + (valid ? position : 0) * rows.position_bytes + unit * 16;
    wgmma::copy_unit_async(to + static_cast<std::uint32_t>(unit / kPanelUnits * Rows * wgmma::kRowBytes) +
                               wgmma::unit_offset(row, unit % kPanelUnits),
                           from, valid);
  }
}

/// sums = a b^T, or sums += a b^T if `accumulate`. The depth runs along the rows of both, which have Dim columns in
/// panels of ARows and BRows rows.
template <int Dim, int ARows, int BRows, int Sums>
__device__ inline void multiply_rows(float (&sums)[Sums], std::uint32_t a, std::uint32_t b, bool accumulate = false) {
#pragma unroll
  for (int step = 0; step < Dim / wgmma::kStepCols; ++step) {
    const std::uint32_t within = static_cast<std::uint32_t>(step % 4) * 32;
    const std::uint32_t panel = static_cast<std::uint32_t>(step / 4) * wgmma::kRowBytes;
    wgmma::multiply_tile(sums, wgmma::along_rows(a, panel * ARows + within),
                         wgmma::along_rows(b, panel * BRows + within), accumulate || step > 0);
  }
}

/// sums += fragments * b for fragments of Depth columns; the depth runs across the rows of b, in panels of BRows rows.
template <int Depth, int BRows, int Sums>
__device__ inline void add_fragments(float (&sums)[Sums], const std::uint32_t (&fragments)[Depth / 16][4],
                                     std::uint32_t b) {
#pragma unroll
  for (int step = 0; step < Depth / wgmma::kStepCols; ++step)
    wgmma::multiply_fragments(
        sums, fragments[step],
        wgmma::across_rows(b, static_cast<std::uint32_t>(step) * wgmma::kStepCols * wgmma::kRowBytes,
                           BRows * wgmma::kRowBytes),
        1);
}

/// 2^x within 2 ulp; 0 if x is below -126.
__device__ inline float exponential2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

__device__ inline float scale_inv_of(const WideOperand& operand) {
  return operand.scale_inv != nullptr ? *operand.scale_inv : 1.0f;
}

/// The cast of P or dS as one thread sees it, two values at a time; nothing is cast without a scale. The counterpart of
/// the general kernels' AttentionCast.
class PairCast {
 public:
  /// The values to cast come divided by `unit`.
  __device__ explicit PairCast(const AttentionRole& role, float unit = 1.0f)
      : active_(role.scale != nullptr),
        kind_(role.dtype == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2),
        scale_inv_(active_ ? 1.0f / *role.scale : 1.0f),
        scale_(bounded(active_ ? *role.scale * unit : unit)),
        unit_(unit) {}
  __device__ float scale_inv() const { return scale_inv_; }
  __device__ bool active() const { return active_; }
  __device__ void apply(float& a, float& b) {
    kind_ == __NV_E4M3 ? apply_as<__NV_E4M3>(a, b) : apply_as<__NV_E5M2>(a, b);
  }
  /// The same with the dtype known at compile time, which leaves no branch.
  template <__nv_fp8_interpretation_t Kind>
  __device__ void apply_as(float& a, float& b) {
    amax_ = larger(larger(amax_, a), b);
    const __nv_fp8x2_storage_t data =
        __nv_cvt_float2_to_fp8x2(make_float2(a * scale_, b * scale_), __NV_SATFINITE, Kind);
    const __half2_raw fp16_pair = __nv_cvt_fp8x2_to_halfraw2(data, Kind);  // exact
    a = __half2float(__half(__half_raw{fp16_pair.x}));
    b = __half2float(__half(__half_raw{fp16_pair.y}));
  }
  /// Must be called by all 32 lanes.
  __device__ void store_amax(const AttentionRole& role) const {
    if (!active_ || role.amax == nullptr) return;
    const unsigned largest = __reduce_max_sync(0xFFFFFFFFu, float_bits(amax_ * unit_) & kFloatMagnitudeMask);
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned*>(role.amax), largest);
  }

 private:
  /// A scale too large for a float becomes the largest float, under which zeros stay zeros; a NaN stays.
  __device__ static float bounded(float scale) { return scale > kFloatMax ? kFloatMax : scale; }
  /// The larger magnitude; a NaN wins.
  __device__ static float larger(float amax, float value) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(result) : "f"(amax), "f"(fabsf(value)));
    return result;
  }

  bool active_;
  __nv_fp8_interpretation_t kind_;
  float scale_inv_;
  float scale_;
  float unit_;
  float amax_ = 0.0f;
};

/// Logit in base 2 (times log2 e) = this * (product of Q and K). The scales of tiny values may multiply to less than a
/// float can represent; the factor is therefore at least 2^-100, so that lse divided by it is finite and -inf times it
/// is not NaN. Sums of products of quantized data stay below 2^39, so such logits are next to zero either way.
__device__ inline float logit_factor_of(const WideOperand& q, const WideOperand& k, const AttentionShape& shape) {
  const float factor = joint_factor(scale_inv_of(q), scale_inv_of(k), shape.softmax_scale) * kLog2E;
  return factor < kLeastSoftmaxScale ? kLeastSoftmaxScale : factor;  // a NaN stays
}
/// dP = this * (product of dO and V). dS that is not cast enters its products in units of this.
__device__ inline float grad_p_factor(const TensorBackward& call) {
  return joint_factor(scale_inv_of(call.grad_o), scale_inv_of(call.v));
}
/// dS = this * (dS as its products read it).
__device__ inline float slope_factor(const TensorBackward& call) {
  return call.grad_p.scale != nullptr ? 1.0f / *call.grad_p.scale : grad_p_factor(call);
}

/// Transposes the 4 x 4 words of four neighbouring lanes: lane i sends its word j to lane j, which stores it as its
/// word i.
__device__ inline void transpose_quad(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, upper ? words[low] : words[high], distance);
      (upper ? words[low] : words[high]) = other;
    }
  }
}

/// Two elements in FP16, rounded to nearest even, the first in the lower 16 bits.
__device__ inline std::uint32_t pack_f16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Stores the rows of a warp group's sums times `factor` to rows `first_row` + ... of a head, which start at multiples
/// of 16 bytes; rows from `seq` on are left out.
template <int Sums>
__device__ inline void store_sums(const float (&sums)[Sums], const MatrixView& matrix, const AttentionShape& shape,
                                  std::int64_t sequence, std::int64_t head, int first_row, float factor) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x % wgmma::kGroupThreads / 32);
  const auto at = [&](int row) { return (row * shape.batch + sequence) * matrix.row_stride + head * shape.head_dim; };
  const auto store_16_bit = [&](auto&& pack) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * warp + lane / 4 + 8 * half;
#pragma unroll
      for (int block = 0; block < Sums / 4; block += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = pack(sums[4 * (block + i) + 2 * half] * factor, sums[4 * (block + i) + 2 * half + 1] * factor);
        transpose_quad(words);
        if (row < shape.seq)
          *reinterpret_cast<uint4*>(matrix.data + 2 * (at(row) + 8 * (block + lane % 4))) =
              make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  };
  switch (matrix.dtype) {
    case DType::kBF16: return store_16_bit([](float a, float b) { return wgmma::pack(a, b); });
    case DType::kF16: return store_16_bit([](float a, float b) { return pack_f16(a, b); });
    default: break;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 16 * warp + lane / 4 + 8 * half;
    if (row >= shape.seq) continue;
#pragma unroll
    for (int block = 0; block < Sums / 4; ++block)
      *reinterpret_cast<float2*>(matrix.data + 4 * (at(row) + 8 * block + 2 * (lane % 4))) =
          make_float2(sums[4 * block + 2 * half] * factor, sums[4 * block + 2 * half + 1] * factor);
  }
}

}  // namespace fp8lab::cuda::tensor_attention
