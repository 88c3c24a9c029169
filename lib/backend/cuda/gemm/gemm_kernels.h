#pragma once

#include "backend/cuda/context.h"

// Own kernels for products, in addition to the library's.
namespace fp8lab::cuda {

/// Everything that GemmArgs allows, for operands of any kind and strides, in FP32: each sum runs over k in order, with
/// fused multiply-adds.
void gemm_general(const GemmArgs& args, CudaContext& context);

/// out = product + bias + (accumulate ? out : 0), rounded once. `product` is f32.
struct GemmFinishArgs {
  MatrixView product;
  MatrixView out;
  MatrixView bias;  ///< [1, n] or absent
  bool accumulate = false;
};
void gemm_finish(const GemmFinishArgs& args, CudaContext& context);

/// Completes a per-tensor cast whose data the library wrote: stores the inverse scale if it is wanted, and raises
/// *amax to the largest magnitude that the library has measured (`seen`). On an H200 that measurement includes the
/// zeros that fill the library's last tiles, so it is NaN if an infinite operand is multiplied by them. Only in that
/// case the quantized data are read: if none of them is NaN, every NaN lay beyond the result, and the result's own
/// largest magnitude is infinite.
struct QuantizeFinishArgs {
  MatrixView data;  ///< rows consist of full 16-byte words and begin at multiples of 16 bytes
  const float* scale = nullptr;
  float* scale_inv[2] = {};     ///< null: not wanted
  float* amax = nullptr;        ///< may be null
  const float* seen = nullptr;  ///< given wherever `amax` is
};
void quantize_finish(const QuantizeFinishArgs& args, CudaContext& context);

/// Dequantizes an operand to BF16, laid out as by dequantized_layout(). A value is at most four significant bits times
/// a power of two, so BF16 holds it exactly or, from 2^128 on, both BF16 and FP32 hold infinity. It is off by at most
/// 2^-134 only under block scales below 2^-124 (E4M3) or 2^-117 (E5M2), for which the smallest 8-bit values reach below
/// BF16's smallest number.
void dequantize_to_bf16(const OperandView& operand, const MatrixView& out, CudaContext& context);

}  // namespace fp8lab::cuda
