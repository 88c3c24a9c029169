#pragma once

#include <span>
#include <vector>

#include "backend/device.h"
#include "comm/process_group.h"
#include "recipe/recipe.h"
#include "tensor/quantized_tensor.h"

// Casts from high precision to eight bits and back. All casts use the scaling expression of core/float8.h.
namespace fp8lab {

/// Which orientations of a quantized tensor to make.
struct Orientations {
  bool rowwise = true;
  bool columnwise = false;
};

/// How a tensor is cast: once or, if it is rewritten in place, repeatedly.
struct Quantizer {
  QuantFormat format;
  Orientations orientations{};
  Tensor scale{};  ///< f32 [1]; needed if the amax comes from a history, absent otherwise
  Tensor amax{};   ///< f32 [1], max-accumulated with this tensor's amax; absent if the amax is not recorded
  /// For a shard whose amax is measured before the cast: the group of ranks that hold the tensor's shards. Their
  /// largest amax is used by all, so that every shard of a tensor has the same scale. Hazard: this is a collective, so
  /// all ranks of the group must cast, also those whose shard has no elements. Null: only this rank's amax.
  ProcessGroup* amax_group = nullptr;
  HolderId holder = 0;  ///< holder of data and scales
};

/// Casts `x`: the matrix [rows, cols] with any strides, f32, f16 or bf16. Per-tensor orientations share one scale_inv
/// block. With AmaxSource::kTensor the amax is either a workspace that lives for the call, or `measured`: a tensor of
/// allocate_amax() that already holds it because the kernel that computed `x` measured it. A group's largest amax is
/// written there.
QuantizedTensor quantize(Device& device, const Tensor& x, const Quantizer& inputs, const Tensor& measured = {});

/// A tensor f32 [1] for the amax of one tensor, uninitialised.
Tensor allocate_amax(Device& device);

/// True if an operation can cast its result without storing it (norm_quantize, activation_quantize, gemm_quantize): a
/// full tensor whose scale is known, or row-wise blocks of one row whose amax is not recorded.
bool casts_unstored(const Quantizer& inputs);

/// Casts several tensors under one scale (per-tensor formats only), which follows from the largest of their amaxes;
/// they share one scale_inv block.
std::vector<QuantizedTensor> quantize_together(Device& device, std::span<const Tensor> xs, const Quantizer& inputs);

/// quantized data * scale_inv as a [rows, cols] tensor of `dtype`.
Tensor dequantize(Device& device, const OperandView& operand, DType dtype, HolderId holder);

}  // namespace fp8lab
