#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_scalars.h"
#include "backend/cuda/attention/cudnn_graph.h"
#include "backend/cuda/kernels.h"

// Attention through cuDNN of operands in eight bits. cuDNN writes its results in eight bits to scratch, from where they
// are dequantized.
namespace fp8lab::cuda {

using namespace cudnn;

namespace {

/// A result that cuDNN wrote to scratch in eight bits: row-major, without gaps.
struct ScratchData {
  std::byte* at = nullptr;
  DType dtype = DType::kE4M3;
  float* scale_inv = nullptr;
};
OperandView operand_of(const ScratchData& data, const MatrixView& result) {
  OperandView operand;
  operand.values = {.data = data.at,
                    .dtype = data.dtype,
                    .rows = result.rows,
                    .cols = result.cols,
                    .row_stride = result.cols,
                    .col_stride = 1};
  operand.scales = {.data = reinterpret_cast<std::byte*>(data.scale_inv), .dtype = DType::kF32, .storage_elems = 1};
  return operand;
}

}  // namespace

bool attention_cudnn_float8_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  for (const MatrixView* view : {&q, &k, &v})
    if (!aligned(*view) || view->dtype != DType::kE4M3) return false;
  if (shape.window != 0 && !kHasWindows<frontend::graph::SDPA_fp8_attributes>) return false;
  if (!eligible(shape, args.lse) || args.s.scale == nullptr || args.s.dtype != DType::kE4M3 ||
      args.o_cast.scale == nullptr || args.o_cast.dtype != DType::kE4M3)
    return false;

  auto& cudnn = context.kept<Cudnn>();
  const std::int64_t o_stride = shape.heads * shape.head_dim;
  const Key key = key_of(Direction::kFloat8Forward, shape, q.dtype, {q.row_stride, k.row_stride, v.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(DataType_t::FP8_E4M3);
    auto [o, stats, amax_s, amax_o] = graph.sdpa_fp8(
        matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
        matrix(graph, kV, shape, heads_of_v(shape), v), scalar(graph, kInverseQ), scalar(graph, kInverseK),
        scalar(graph, kInverseV), scalar(graph, kInverseS), scalar(graph, kScaleS), scalar(graph, kScaleO),
        with_rule(frontend::graph::SDPA_fp8_attributes().set_generate_stats(true), shape));
    place(o, kO, shape, heads_of_o(shape), DType::kE4M3, o_stride);
    place_stats(stats, shape);
    place_scalar(amax_s, kAmaxS);
    place_scalar(amax_o, kAmaxO);
  });
  if (plan.graph == nullptr) return false;

  // Scratch: the workspace, then the quantized data of O.
  const std::size_t workspace = aligned_bytes(plan.workspace);
  const std::int64_t rows = shape.seq * shape.batch;
  std::byte* const scratch = context.scratch(workspace + static_cast<std::size_t>(rows * o_stride));
  const RoleScalars role_s{
      .scale = args.s.scale, .amax = args.s.amax, .inverse = cudnn.scalar(0), .seen = cudnn.scalar(1)};
  const RoleScalars role_o{
      .scale = args.o_cast.scale, .amax = args.o_cast.amax, .inverse = cudnn.scalar(2), .seen = cudnn.scalar(3)};
  const std::array roles = {role_s, role_o};
  prepare_scales(roles, context.stream());
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, scratch + workspace},
                    {kStats, args.lse.data},
                    {kInverseQ, args.q.scales.data},
                    {kInverseK, args.k.scales.data},
                    {kInverseV, args.v.scales.data},
                    {kInverseS, role_s.inverse},
                    {kScaleS, const_cast<float*>(args.s.scale)},
                    {kScaleO, const_cast<float*>(args.o_cast.scale)},
                    {kAmaxS, cudnn.scalar(1)},
                    {kAmaxO, cudnn.scalar(3)}};
  run(plan, cudnn, pointers, scratch);
  raise_amaxes(roles, context.stream());
  if (args.o_measured != nullptr) *args.o_measured = true;
  const ScratchData data{.at = scratch + workspace, .dtype = DType::kE4M3, .scale_inv = role_o.inverse};
  dequantize({.in = operand_of(data, args.o), .out = args.o}, context);
  return true;
}

// cuDNN multiplies dS by softmax_scale before it casts it, and the definition multiplies afterwards. The scale that
// cuDNN gets is therefore divided by softmax_scale, so that the quantized data equal the definition's up to one
// rounding of the product.
bool attention_cudnn_float8_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values, &o = args.o.values,
                   &grad_o = args.grad_o.values;
  for (const MatrixView* view : {&q, &k, &v, &o})
    if (!aligned(*view) || view->dtype != DType::kE4M3) return false;
  const auto casts_to = [](const AttentionRole& role, DType dtype) {
    return role.scale != nullptr && role.dtype == dtype;
  };
  if (!aligned(grad_o) || grad_o.dtype != DType::kE5M2 || !eligible(shape, args.lse) || shape.window != 0 ||
      shape.head_dim != 128 || !(shape.softmax_scale > 0.0f) || !casts_to(args.s, DType::kE4M3) ||
      !casts_to(args.grad_p, DType::kE5M2) || !casts_to(args.grad_cast, DType::kE5M2))
    return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key = key_of(Direction::kFloat8Backward, shape, q.dtype,
                         {q.row_stride, k.row_stride, v.row_stride, o.row_stride, grad_o.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(DataType_t::FP8_E4M3);
    auto [grad_q, grad_k, grad_v, amax_q, amax_k, amax_v, amax_p] = graph.sdpa_fp8_backward(
        matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
        matrix(graph, kV, shape, heads_of_v(shape), v), matrix(graph, kO, shape, heads_of_o(shape), o),
        matrix(graph, kGradO, shape, heads_of_o(shape), grad_o), stats_of(graph, shape), scalar(graph, kInverseQ),
        scalar(graph, kInverseK), scalar(graph, kInverseV), scalar(graph, kInverseO), scalar(graph, kInverseGradO),
        scalar(graph, kInverseS), scalar(graph, kInverseGradP), scalar(graph, kScaleS), scalar(graph, kScaleGradQ),
        scalar(graph, kScaleGradK), scalar(graph, kScaleGradV), scalar(graph, kScaleGradP),
        with_rule(frontend::graph::SDPA_fp8_backward_attributes(), shape));
    place(grad_q, kGradQ, shape, heads_of_q(shape), DType::kE5M2, args.grad_q.cols);
    place(grad_k, kGradK, shape, heads_of_k(shape), DType::kE5M2, args.grad_k.cols);
    place(grad_v, kGradV, shape, heads_of_v(shape), DType::kE5M2, args.grad_v.cols);
    place_scalar(amax_q, kAmaxGradQ);
    place_scalar(amax_k, kAmaxGradK);
    place_scalar(amax_v, kAmaxGradV);
    place_scalar(amax_p, kAmaxGradP);
  });
  if (plan.graph == nullptr) return false;

  // Scratch: the workspace, then the quantized data of each gradient.
  const std::array results = {&args.grad_q, &args.grad_k, &args.grad_v};
  std::size_t bytes = aligned_bytes(plan.workspace);
  std::array<std::size_t, 3> places{};
  for (std::size_t i = 0; i < results.size(); ++i) {
    places[i] = bytes;
    bytes += aligned_bytes(static_cast<std::size_t>(results[i]->numel()));
  }
  std::byte* const scratch = context.scratch(bytes);
  const RoleScalars role_s{.scale = args.s.scale, .inverse = cudnn.scalar(0)};
  const RoleScalars role_p{.scale = args.grad_p.scale,
                           .amax = args.grad_p.amax,
                           .inverse = cudnn.scalar(1),
                           .applied = cudnn.scalar(2),
                           .seen = cudnn.scalar(3),
                           .factor = shape.softmax_scale};
  const auto role_of_gradient = [&](std::size_t seen) {
    return RoleScalars{.scale = args.grad_cast.scale,
                       .amax = args.grad_cast.amax,
                       .inverse = cudnn.scalar(4),
                       .seen = cudnn.scalar(seen)};
  };
  const std::array roles = {role_s, role_p, role_of_gradient(5), role_of_gradient(6), role_of_gradient(7)};
  prepare_scales(roles, context.stream());
  auto* const gradient_scale = const_cast<float*>(args.grad_cast.scale);
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, o.data},
                    {kGradO, grad_o.data},
                    {kStats, args.lse.data},
                    {kGradQ, scratch + places[0]},
                    {kGradK, scratch + places[1]},
                    {kGradV, scratch + places[2]},
                    {kInverseQ, args.q.scales.data},
                    {kInverseK, args.k.scales.data},
                    {kInverseV, args.v.scales.data},
                    {kInverseO, args.o.scales.data},
                    {kInverseGradO, args.grad_o.scales.data},
                    {kInverseS, role_s.inverse},
                    {kInverseGradP, role_p.inverse},
                    {kScaleS, const_cast<float*>(args.s.scale)},
                    {kScaleGradP, role_p.applied},
                    {kScaleGradQ, gradient_scale},
                    {kScaleGradK, gradient_scale},
                    {kScaleGradV, gradient_scale},
                    {kAmaxGradP, cudnn.scalar(3)},
                    {kAmaxGradQ, cudnn.scalar(5)},
                    {kAmaxGradK, cudnn.scalar(6)},
                    {kAmaxGradV, cudnn.scalar(7)}};
  run(plan, cudnn, pointers, scratch);
  raise_amaxes(roles, context.stream());
  if (args.grad_measured != nullptr) *args.grad_measured = true;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ScratchData data{.at = scratch + places[i], .dtype = DType::kE5M2, .scale_inv = cudnn.scalar(4)};
    dequantize({.in = operand_of(data, *results[i]), .out = *results[i]}, context);
  }
  return true;
}

}  // namespace fp8lab::cuda
