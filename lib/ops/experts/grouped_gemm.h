#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/gemm.h"

// Products of groups of rows, each with a matrix of its own (the experts of a mixture). The matrices lie one below the
// other in one parameter. A group begins, and its matrix begins, at a row that begins a block of every scale.
namespace fp8lab {

/// Rows [begin, begin + rows) of a matrix.
struct RowGroup {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
};

/// y = x_e W_e^T for the rows of each group e: inputs.a is x [rows, k], inputs.b holds all W_e [groups * n, k], the
/// result is [rows, n]. Rows after the last group are 0. A group without rows multiplies nothing. inputs.bias, if
/// given, has n elements for each group, one group after the other, and is added to all rows of a group, padding
/// included.
Tensor grouped_gemm(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups);

/// The gradient of x: dy_e W_e. inputs.a is dy [rows, n], inputs.b is the transpose [k, groups * n] of the matrices;
/// the result is [rows, k], 0 after the last group.
Tensor grouped_gemm_input_gradient(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups);

/// The gradients of all W_e: dy_e^T x_e. inputs.a is the transpose [n, rows] of dy, inputs.b the transpose [k, rows] of
/// x; the result is [groups * n, k], 0 for a group without rows.
Tensor grouped_gemm_weight_gradient(Device& device, const GemmInputs& inputs, std::span<const RowGroup> groups);

/// The gradient of the bias of grouped_gemm(), `spec` with groups * n elements: the sums over the rows of each group of
/// dy [rows, n]; 0 for a group without rows.
Tensor grouped_bias_gradient(Device& device, const Tensor& grad_y, std::span<const RowGroup> groups,
                             const TensorSpec& spec, HolderId holder);

}  // namespace fp8lab
