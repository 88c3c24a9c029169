#pragma once

#include "backend/device.h"
#include "ops/quantize.h"

namespace fp8lab {

/// out[m, n] = sum over k of a[m, k] * b[n, k] (+ bias[n]). A 16-bit or f32 operand may be a transposed view. Whether a
/// quantized operand may be one depends on the GPU (ArchProfile::fp8_gemm_any_orientation) and is checked here; with
/// E8M0 scales it may be one on every GPU.
struct GemmInputs {
  OperandView a;
  OperandView b;
  const Tensor* bias = nullptr;  ///< [n]
  DType out_dtype = DType::kBF16;
  HolderId holder = 0;
  /// A faster and less exact sum of per-tensor scaled quantized data, for products in forward (GemmArgs describes the
  /// loss). Transformer Engine uses it in forward and not in backward, whose gradients need the accuracy.
  bool fast_accumulation = false;
};

Tensor gemm(Device& device, const GemmInputs& inputs);
/// The same into `out` [m, n], which may be rows of a larger tensor. inputs.out_dtype and inputs.holder are unused.
void gemm_into(Device& device, const GemmInputs& inputs, const Tensor& out);

/// Quantizes the product without storing it. casts_unstored() must hold for `quantizer`; inputs.out_dtype and
/// inputs.holder are unused. It casts the finished sum in FP32 (GemmQuantizeArgs), which a product stored in 16
/// bits would have rounded.
QuantizedTensor gemm_quantize(Device& device, const GemmInputs& inputs, const Quantizer& quantizer);

}  // namespace fp8lab
