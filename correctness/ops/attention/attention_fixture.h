#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "core/counter_rng.h"
#include "ops/attention.h"
#include "reference/attention_reference.h"
#include "support/test_device.h"

/// What the attention tests share: operands on a device, the same operands in double for the reference, and a
/// comparison within the reference's own error bound.
namespace fp8lab::attention_test {

/// Which keys a query sees.
struct Mask {
  bool causal;
  std::int64_t window;
};
/// Windows around the tiles of 32 queries and 64 keys.
inline constexpr Mask kMasks[] = {{true, 0}, {false, 0}, {true, 1}, {true, 40}};

struct ShapeOptions {
  std::int64_t seq = 0;
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 8;
  bool causal = true;
  std::int64_t window = 0;
  float dropout = 0.0f;
  std::int64_t value_dim = 0;
};
inline AttentionShape make_shape(const ShapeOptions& options) {
  return {.seq = options.seq,
          .batch = options.batch,
          .heads = options.heads,
          .kv_heads = options.kv_heads,
          .head_dim = options.head_dim,
          .value_dim = options.value_dim,
          .causal = options.causal,
          .window = options.window,
          .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(options.head_dim))),
          .dropout = options.dropout,
          .seed = 7,
          .stream = 11};
}
inline std::int64_t tokens(const AttentionShape& shape) { return shape.seq * shape.batch; }
inline std::int64_t query_cols(const AttentionShape& shape) { return shape.heads * shape.head_dim; }
inline std::int64_t key_cols(const AttentionShape& shape) { return shape.kv_heads * shape.head_dim; }
inline std::int64_t value_cols(const AttentionShape& shape) { return shape.kv_heads * shape.columns_of_value(); }
inline std::int64_t output_cols(const AttentionShape& shape) { return shape.heads * shape.columns_of_value(); }

inline std::string describe(const AttentionShape& shape, DType dtype = DType::kF32) {
  return std::string(name(dtype)) + "_s" + std::to_string(shape.seq) + "_b" + std::to_string(shape.batch) + "_h" +
         std::to_string(shape.heads) + "_kv" + std::to_string(shape.kv_heads) + "_d" + std::to_string(shape.head_dim) +
         (shape.causal ? "_causal" : "_full") + (shape.window > 0 ? "_window" + std::to_string(shape.window) : "") +
         (shape.dropout > 0 ? "_dropout" : "");
}

inline std::vector<float> gaussian(std::int64_t count, std::uint64_t stream, float deviation = 1.0f) {
  const CounterRng rng(2024, stream);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = deviation * rng.normal(i);
  return values;
}

/// A matrix on a device, with its inverse scale if it is FP8.
struct Operand {
  Tensor values;
  Tensor scale_inv;

  OperandView view() const {
    OperandView view{.values = values.view(), .scales = {}};
    if (scale_inv) view.scales = {.data = scale_inv.view().data, .dtype = DType::kF32, .storage_elems = 1};
    return view;
  }
};

inline Tensor make_tensor(Device& device, std::int64_t rows, std::int64_t cols, DType dtype) {
  return device.allocate({Shape{rows, cols}, dtype}, device.holder(HolderKind::kInput));
}
inline Tensor make_scalar(Device& device, float value) {
  Tensor scalar = device.allocate({Shape{1}, DType::kF32}, device.holder(HolderKind::kRecipeState));
  device.write(scalar, std::vector<float>{value});
  return scalar;
}

inline Operand make_operand(Device& device, std::int64_t cols, DType dtype, const std::vector<float>& values) {
  Tensor tensor = make_tensor(device, static_cast<std::int64_t>(values.size()) / cols, cols, dtype);
  device.write(tensor, values);
  return {tensor, {}};
}
/// Quantized data of values * scale.
inline Operand make_quantized(Device& device, std::int64_t cols, DType dtype, std::vector<float> values, float scale) {
  for (float& value : values) value *= scale;
  Operand operand = make_operand(device, cols, dtype, values);
  operand.scale_inv = make_scalar(device, 1.0f / scale);
  return operand;
}

/// The exact values of the operand.
inline std::vector<double> read(Device& device, const Operand& operand) {
  const std::vector<float> floats = device.read(operand.values);
  std::vector<double> values(floats.begin(), floats.end());
  if (!operand.scale_inv) return values;
  const double scale_inv = device.read(operand.scale_inv)[0];
  for (double& value : values) value *= scale_inv;
  return values;
}

struct Qkv {
  Operand q;
  Operand k;
  Operand v;
};

/// Columns of one packed tensor, as a projection stores them.
inline Qkv make_qkv(Device& device, const AttentionShape& shape, DType dtype, float deviation = 1.0f) {
  const std::int64_t q = query_cols(shape), k = key_cols(shape), v = value_cols(shape), cols = q + k + v;
  const Tensor packed = make_operand(device, cols, dtype, gaussian(tokens(shape) * cols, 1, deviation)).values;
  return {{packed.columns(0, q), {}}, {packed.columns(q, k), {}}, {packed.columns(q + k, v), {}}};
}

inline reference::AttentionInputsReference reference_inputs(Device& device, const Qkv& qkv,
                                                            const reference::AttentionCast& s = {}) {
  return {read(device, qkv.q), read(device, qkv.k), read(device, qkv.v), s};
}

/// `operands`: the type of q, k and v, which decides how the device under test computes.
inline reference::AttentionProblem reference_problem(const AttentionShape& shape, DType operands = DType::kF32) {
  reference::AttentionProblem problem{.seq = shape.seq,
                                      .batch = shape.batch,
                                      .heads = shape.heads,
                                      .kv_heads = shape.kv_heads,
                                      .head_dim = shape.head_dim,
                                      .causal = shape.causal,
                                      .window = shape.window,
                                      .softmax_scale = static_cast<double>(shape.softmax_scale),
                                      .dropout = static_cast<double>(shape.dropout),
                                      .kept = {},
                                      .precision = 0,
                                      .rounding = 0};
  if (shape.dropout > 0.0f) {
    const CounterRng rng(shape.seed, shape.stream);
    problem.kept.resize(static_cast<std::size_t>(shape.batch * shape.heads * shape.seq * shape.seq));
    for (std::size_t i = 0; i < problem.kept.size(); ++i) problem.kept[i] = rng.uniform(i) >= shape.dropout;
  }
  // A sum of n FP32 products has an error of at most n + 1 roundings of 2^-24 of its magnitudes. The longest sums run
  // over head_dim, over the keys (64 in a row, then one per 64), or, for dK and dV, over the queries of a group of
  // heads (32 in a row). Eight more roundings allow for exp (2 ulp), the product of scales, the factor of dropout and
  // the last rounding.
  const std::int64_t over_tokens = std::min<std::int64_t>(shape.seq, 64) + shape.seq / 32 + shape.heads;
  problem.precision = static_cast<double>(std::max(shape.head_dim, over_tokens) + 8) * 0x1p-24;
  // Matrix units round P and dS of 16-bit attention to bf16; casts to FP8 are exact there.
  const bool matrix_units = support::test_device() == "cuda" && (shape.head_dim == 64 || shape.head_dim == 128);
  if (matrix_units && operands == DType::kBF16) problem.rounding = 0x1p-8;
  return problem;
}

/// Half a unit in the last place, relative.
inline double roundoff(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

/// |actual - value| <= error + roundoff * |value| for every element; NaN never passes.
inline ::testing::AssertionResult within(const std::vector<float>& actual, const reference::Bounded& expected,
                                         DType dtype = DType::kF32) {
  if (actual.size() != expected.value.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.value.size();
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // If FP32 itself is subnormal, roundings are no longer relative.
    const double limit = expected.error[i] + roundoff(dtype) * std::fabs(expected.value[i]) + 0x1p-140;
    if (!(std::fabs(static_cast<double>(actual[i]) - expected.value[i]) <= limit) && wrong++ == 0) first = i;
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << actual.size() << " elements are off; first [" << first
                                       << "] is " << actual[first] << ", expected " << expected.value[first]
                                       << " within " << expected.error[first];
}

inline AttentionOutputs run_forward(Device& device, const AttentionShape& shape, const Qkv& qkv, DType out_dtype,
                                    const AttentionRole& s = {}) {
  return attention_forward(device, {.shape = shape,
                                    .q = qkv.q.view(),
                                    .k = qkv.k.view(),
                                    .v = qkv.v.view(),
                                    .s = s,
                                    .out_dtype = out_dtype,
                                    .o_holder = device.holder(HolderKind::kInFlight, "attention", "o"),
                                    .lse_holder = device.holder(HolderKind::kInFlight, "attention", "lse")});
}

struct BackwardOperands {
  Qkv qkv;
  Operand o;
  Operand grad_o;
  Tensor lse;
  AttentionRole s;
  AttentionRole grad_p;
  AttentionRole grad_cast = {};
};

/// Gradients as columns of one packed tensor.
inline AttentionGradients run_backward(Device& device, const AttentionShape& shape, const BackwardOperands& operands,
                                       DType out_dtype) {
  const std::int64_t q = query_cols(shape), kv = key_cols(shape);
  const Tensor packed = make_tensor(device, tokens(shape), q + 2 * kv, out_dtype);
  AttentionGradients out{packed.columns(0, q), packed.columns(q, kv), packed.columns(q + kv, kv)};
  attention_backward(device, {.shape = shape,
                              .q = operands.qkv.q.view(),
                              .k = operands.qkv.k.view(),
                              .v = operands.qkv.v.view(),
                              .o = operands.o.view(),
                              .grad_o = operands.grad_o.view(),
                              .lse = operands.lse,
                              .s = operands.s,
                              .grad_p = operands.grad_p,
                              .grad_cast = operands.grad_cast,
                              .out = out});
  return out;
}

class AttentionTest : public ::testing::Test {
 protected:
  // Poison: if a kernel reads memory that it has not written, or leaves its result unwritten, the value is NaN.
  std::unique_ptr<Device> owned_device_ = support::open_poisoned_device();
  Device& device_ = *owned_device_;
};

}  // namespace fp8lab::attention_test
