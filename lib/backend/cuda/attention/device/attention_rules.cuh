#pragma once

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "backend/kernels.h"
#include "core/counter_rng.h"
#include "core/elementary.h"

// Shared by all attention kernels of the GPU; each is word for word a rule of cpu/attention/attention_tiles.h.
namespace fp8lab::cuda {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();

/// An element of any type, not multiplied by its scale. The type is the same for the entire launch, so the branch is
/// uniform.
__device__ inline float load_element(const MatrixView& matrix, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(matrix.data)[at];
    case DType::kBF16: return bf16_to_f32(reinterpret_cast<const BFloat16*>(matrix.data)[at]);
    case DType::kF16: return f16_to_f32(reinterpret_cast<const Half*>(matrix.data)[at]);
    case DType::kE4M3: return e4m3_to_f32(reinterpret_cast<const std::uint8_t*>(matrix.data)[at]);
    default: return e5m2_to_f32(reinterpret_cast<const std::uint8_t*>(matrix.data)[at]);
  }
}

/// Stores a value rounded once to the matrix's type: f32, bf16 or f16.
__device__ inline void store_element(const MatrixView& matrix, std::int64_t row, std::int64_t col, float value) {
  const std::int64_t at = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: reinterpret_cast<float*>(matrix.data)[at] = value; break;
    case DType::kBF16: reinterpret_cast<BFloat16*>(matrix.data)[at] = f32_to_bf16(value); break;
    default: reinterpret_cast<Half*>(matrix.data)[at] = f32_to_f16(value); break;
  }
}

/// The operand's per-tensor inverse scale; 1 for an operand without scales.
__device__ inline float scale_inv_of(const OperandView& operand) {
  return operand.scales.data != nullptr ? *reinterpret_cast<const float*>(operand.scales.data) : 1.0f;
}
/// The product of up to three scales, rounded once.
__device__ inline float joint_factor(double a, double b, double c = 1.0) { return static_cast<float>(a * b * c); }

__device__ inline float shift_of(float lse) { return lse == kMinusInfinity ? 0.0f : lse; }

/// Dropout of P: the factor of entry (query, key) of a head, 1 / (1 - p) if it is kept and 0 if it is dropped.
class AttentionDropout {
 public:
  __device__ AttentionDropout(const AttentionShape& shape, std::int64_t sequence, std::int64_t head)
      : rng_(shape.seed, shape.stream),
        probability_(shape.dropout),
        kept_(1.0f / (1.0f - shape.dropout)),
        seq_(shape.seq),
        head_base_(static_cast<std::uint64_t>((sequence * shape.heads + head) * shape.seq)) {}
  __device__ bool active() const { return probability_ > 0.0f; }
  __device__ float factor(std::int64_t query, std::int64_t key) const {
    const std::uint64_t index = (head_base_ + static_cast<std::uint64_t>(query)) * static_cast<std::uint64_t>(seq_) +
                                static_cast<std::uint64_t>(key);
    return rng_.uniform(index) >= probability_ ? kept_ : 0.0f;
  }

 private:
  CounterRng rng_;
  float probability_;
  float kept_;
  std::int64_t seq_;
  std::uint64_t head_base_;
};

/// The cast of P or dS, which exist only inside the kernel, as one thread sees it. Without a scale in the role nothing
/// is cast.
class AttentionCast {
 public:
  __device__ explicit AttentionCast(const AttentionRole& role)
      : active_(role.scale != nullptr),
        e4m3_(role.dtype == DType::kE4M3),
        scale_(active_ ? *role.scale : 1.0f),
        scale_inv_(active_ ? 1.0f / scale_ : 1.0f) {}
  __device__ bool active() const { return active_; }
  __device__ float scale_inv() const { return scale_inv_; }
  /// Returns decode(cast(value * scale)), which the caller still multiplies by scale_inv(), and records the value's
  /// magnitude for the amax. Without a scale returns `value`.
  __device__ float apply(float value) {
    if (!active_) return value;
    const std::uint32_t magnitude = float_bits(value) & kFloatMagnitudeMask;  // NaN is above all
    amax_bits_ = magnitude > amax_bits_ ? magnitude : amax_bits_;
    return e4m3_ ? e4m3_to_f32(Element<DType::kE4M3>::store(value * scale_))
                 : e5m2_to_f32(Element<DType::kE5M2>::store(value * scale_));
  }
  /// Raises the role's amax to the largest magnitude that the warp has seen. Must be called by all 32 lanes.
  __device__ void store_amax(const AttentionRole& role) const {
    if (!active_ || role.amax == nullptr) return;
    const unsigned largest = __reduce_max_sync(0xFFFFFFFFu, amax_bits_);
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned*>(role.amax), largest);
  }

 private:
  bool active_;
  bool e4m3_;
  float scale_;
  float scale_inv_;
  std::uint32_t amax_bits_ = 0;
};

}  // namespace fp8lab::cuda
