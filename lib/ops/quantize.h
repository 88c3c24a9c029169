#pragma once

#include <span>
#include <vector>

#include "backend/device.h"
#include "comm/process_group.h"
#include "recipe/recipe.h"
#include "tensor/quantized_tensor.h"

// High precision to eight bits and back. The scaling expression is core/float8.h's, everywhere.
namespace fp8lab {

/// Which orientations of a quantized tensor to make.
struct Orientations {
  bool rowwise = true;
  bool columnwise = false;
};

/// How a tensor is cast: once, or, where it is rewritten in place, again and again.
struct Quantizer {
  QuantFormat format;
  Orientations orientations{};
  Tensor scale{};  ///< f32 [1]; needed if the amax comes from a history, otherwise absent
  Tensor amax{};   ///< f32 [1], max-accumulated with this tensor's amax; absent where nobody records it
  /// Of a shard whose amax is measured before the cast: the ranks whose largest amax counts for all, so that every
  /// shard of a tensor has one scale. All of them must cast then, those without elements too. Null: this rank alone.
  ProcessGroup* amax_group = nullptr;
  HolderId holder = 0;  ///< of data and scales
};

/// `x` as the matrix [rows, cols] of any strides, f32, f16 or bf16. Per-tensor orientations share one scale_inv block.
/// With AmaxSource::kTensor the amax is a workspace that lives for the call, or `measured`: a tensor of allocate_amax()
/// that holds it already, because whoever made `x` measured it on the way. A group's largest amax is written there.
QuantizedTensor quantize(Device& device, const Tensor& x, const Quantizer& inputs, const Tensor& measured = {});

/// Room for the amax of one tensor, f32 [1], not yet written.
Tensor allocate_amax(Device& device);

/// Whether an operation can cast its result without storing it (norm_quantize, activation_quantize, gemm_quantize): a
/// full tensor whose scale is known, or row-wise blocks of one row, whose amax nobody else asks for.
bool casts_unstored(const Quantizer& inputs);

/// Several tensors under one scale (per-tensor formats only), their amax being the largest of all; they share one
/// scale_inv block.
std::vector<QuantizedTensor> quantize_together(Device& device, std::span<const Tensor> xs, const Quantizer& inputs);

/// quantized data * scale_inv as a [rows, cols] tensor of `dtype`.
Tensor dequantize(Device& device, const OperandView& operand, DType dtype, HolderId holder);

}  // namespace fp8lab
