#pragma once

#include "backend/device.h"
#include "ops/quantize.h"

namespace fp8lab {

/// Operands are read along their columns: out[m, n] = sum over k of a[m, k] * b[n, k] (+ bias[n]). A transposed view of
/// a 16-bit or f32 tensor serves any orientation; whether a quantized operand may be a transposed view is the GPU's
/// property (ArchProfile::fp8_gemm_any_orientation) and is checked here; with E8M0 scales it may everywhere.
struct GemmInputs {
  OperandView a;
  OperandView b;
  const Tensor* bias = nullptr;  ///< [n]
  DType out_dtype = DType::kBF16;
  HolderId holder = 0;
  /// A faster and less exact sum of per-tensor scaled quantized data, for products in forward (GemmArgs has what it
  /// lets go of); Transformer Engine takes it there and not in backward, whose gradients need the bits.
  bool fast_accumulation = false;
};

Tensor gemm(Device& device, const GemmInputs& inputs);

/// Quantizes the product without storing it. `quantizer` is one that casts_unstored(); inputs.out_dtype and
/// inputs.holder are unused: the cast is of the finished sum in FP32 (GemmQuantizeArgs), which a product stored in 16
/// bits would have rounded.
QuantizedTensor gemm_quantize(Device& device, const GemmInputs& inputs, const Quantizer& quantizer);

}  // namespace fp8lab
