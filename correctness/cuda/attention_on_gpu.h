#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "backend/cuda/attention/attention.h"
#include "ops/attention/attention_fixture.h"

/// The kernels of attention on a GPU, each called directly, and measures of the difference between two results.
namespace fp8lab::attention_test {

using cuda::CudaContext;

/// A kernel for each direction; it returns false if it does not support the call.
using Forward = bool (*)(const AttentionForwardArgs&, CudaContext&);
using Backward = bool (*)(const AttentionBackwardArgs&, CudaContext&);

inline bool general_forward(const AttentionForwardArgs& args, CudaContext& context) {
  cuda::attention_general_forward(args, context);
  return true;
}
inline bool general_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  cuda::attention_general_backward(args, context);
  return true;
}

inline bool tensor_forward(const AttentionForwardArgs& args, CudaContext& context) {
  cuda::attention_tensor_forward(args, context);
  return true;
}
inline bool tensor_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  cuda::attention_tensor_backward(args, context);
  return true;
}

class AttentionOnGpuTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> owned_device_ = open_device("cuda", {.memory = {.capacity_bytes = 0, .poison = true}});
  Device& device_ = *owned_device_;
  CudaContext& context_ = cuda::cuda_context(device_.context());

  AttentionOutputs make_outputs(const AttentionShape& shape, DType dtype) {
    return {make_tensor(device_, tokens(shape), output_cols(shape), dtype),
            make_tensor(device_, shape.batch * shape.heads, shape.seq, DType::kF32)};
  }
  bool forward(Forward kernel, const AttentionShape& shape, const Qkv& qkv, const AttentionOutputs& out,
               const AttentionRole& s = {}, const AttentionRole& o_cast = {}, const Tensor& sinks = {}) {
    return kernel({.shape = shape,
                   .q = qkv.q.view(),
                   .k = qkv.k.view(),
                   .v = qkv.v.view(),
                   .o = out.o.view(),
                   .lse = out.lse.view(),
                   .s = s,
                   .sinks = sinks ? sinks.view() : MatrixView{},
                   .o_cast = o_cast},
                  context_);
  }
  struct Gradients {
    std::vector<float> q, k, v, sinks;
  };
  Gradients backward(Backward kernel, const AttentionShape& shape, const BackwardOperands& operands, DType dtype,
                     const Tensor& sinks = {}) {
    const std::int64_t q = query_cols(shape), k = key_cols(shape), v = value_cols(shape);
    const Tensor packed = make_tensor(device_, tokens(shape), q + k + v, dtype);
    AttentionGradients out{packed.columns(0, q), packed.columns(q, k), packed.columns(q + k, v)};
    if (sinks) out.sinks = make_tensor(device_, 1, shape.heads, sinks.dtype());
    EXPECT_TRUE(kernel({.shape = shape,
                        .q = operands.qkv.q.view(),
                        .k = operands.qkv.k.view(),
                        .v = operands.qkv.v.view(),
                        .o = operands.o.view(),
                        .grad_o = operands.grad_o.view(),
                        .lse = operands.lse.view(),
                        .grad_q = out.q.view(),
                        .grad_k = out.k.view(),
                        .grad_v = out.v.view(),
                        .s = operands.s,
                        .grad_p = operands.grad_p,
                        .sinks = sinks ? sinks.view() : MatrixView{},
                        .grad_sinks = sinks ? out.sinks.view() : MatrixView{},
                        .grad_cast = operands.grad_cast},
                       context_));
    return {device_.read(out.q), device_.read(out.k), device_.read(out.v),
            sinks ? device_.read(out.sinks) : std::vector<float>{}};
  }
  Operand gaussian_operand(const AttentionShape& shape, std::int64_t cols, DType dtype, std::uint64_t stream) {
    return make_operand(device_, cols, dtype, gaussian(tokens(shape) * cols, stream));
  }
  Operand float8_operand(const AttentionShape& shape, std::int64_t cols, DType dtype, std::uint64_t stream) {
    // Gaussian values stay below 5.8.
    return make_quantized(device_, cols, dtype, gaussian(tokens(shape) * cols, stream),
                          dtype == DType::kE4M3 ? 64.0f : 8192.0f);
  }
  Qkv float8_qkv(const AttentionShape& shape) {
    return {float8_operand(shape, query_cols(shape), DType::kE4M3, 1),
            float8_operand(shape, key_cols(shape), DType::kE4M3, 2),
            float8_operand(shape, key_cols(shape), DType::kE4M3, 3)};
  }
};

/// |difference| over |expected|, both as lengths of entire vectors; NaN if either vector contains one.
inline double distance(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    error += difference * difference;
    size += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(error / size);
}

/// The number of elements outside of |actual - expected| <= relative * |expected| + weight * spread.
inline std::size_t outside(const std::vector<float>& actual, const std::vector<float>& expected,
                           const std::vector<float>& spread, double relative, double weight) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound =
        relative * std::fabs(static_cast<double>(expected[i])) + weight * static_cast<double>(spread[i]);
    count += !(std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])) <= bound);
  }
  return count;
}

inline Operand magnitudes(Device& device, const Operand& operand, std::int64_t cols) {
  std::vector<float> values = device.read(operand.values);
  for (float& value : values) value = std::fabs(value);
  return make_operand(device, cols, operand.values.dtype(), values);
}

/// Products of 16-bit elements are exact in FP32 and are summed there: at most 130 roundings of 2^-24, of sums of
/// magnitudes below 16.
inline constexpr double kLseError = 130 * 16 * 0x1p-24;

}  // namespace fp8lab::attention_test
