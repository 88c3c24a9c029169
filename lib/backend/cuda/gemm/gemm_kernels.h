#pragma once

#include "backend/cuda/context.h"

// Products' own kernels, beside the library's.
namespace fp8lab::cuda {

/// The full array of GemmArgs for operands of any kind and strides, in FP32: each sum runs over k in order, by fused
/// multiply-adds.
void gemm_general(const GemmArgs& args, CudaContext& gpu);

/// out = product + bias + (accumulate ? out : 0), rounded once. `product` is f32.
struct GemmFinishArgs {
  MatrixView product;
  MatrixView out;
  MatrixView bias;  ///< [1, n] or absent
  bool accumulate = false;
};
void gemm_finish(const GemmFinishArgs& args, CudaContext& gpu);

/// What is left of a per-tensor cast whose data the library wrote: the inverse scale, wherever it goes, and *amax
/// raised to the largest magnitude that the library has seen. On an H200 that takes in the zeros which fill its last
/// tiles: it is NaN where an infinite operand is multiplied by them. Then, and then alone, the quantized data are read:
/// where none of them is NaN, every NaN lay beyond the result, whose own largest magnitude is infinite.
struct QuantizeFinishArgs {
  MatrixView data;  ///< in rows of full 16 bytes that begin at multiples of them
  const float* scale = nullptr;
  float* scale_inv[2] = {};     ///< null: nowhere
  float* amax = nullptr;        ///< may be null
  const float* seen = nullptr;  ///< there where `amax` is
};
void quantize_finish(const QuantizeFinishArgs& args, CudaContext& gpu);

/// The values of a quantized operand, laid out as dequantized_layout() says. A value is at most four significant bits
/// times a power of two, so BF16 holds it exactly or, from 2^128 on, both it and FP32 hold infinity; it is
/// off by at most 2^-134 only under block scales below 2^-124 (E4M3) or 2^-117 (E5M2), whose smallest 8-bit values
/// reach below BF16's smallest number.
void dequantize_to_bf16(const OperandView& operand, const MatrixView& out, CudaContext& gpu);

}  // namespace fp8lab::cuda
