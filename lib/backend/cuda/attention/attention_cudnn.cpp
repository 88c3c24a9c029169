#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/cudnn_graph.h"
#include "backend/cuda/attention/cudnn_library.h"
#include "backend/cuda/kernels.h"

// Attention through cuDNN of operands in 16 bits.
namespace fp8lab::cuda {

using namespace cudnn;

const std::string& cudnn_unavailable_reason() { return load_cudnn(); }

namespace {

/// The plan of a forward, with sinks in cuDNN or without.
const Plan& forward_plan(const AttentionForwardArgs& args, Cudnn& cudnn, bool sinks) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  const Key key = key_of(Direction::kForward, shape, q.dtype,
                         {q.row_stride, k.row_stride, v.row_stride, args.o.row_stride, sinks ? 1 : 0});
  return cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto attributes = with_rule(frontend::graph::SDPA_attributes().set_generate_stats(true), shape);
    if (sinks) add_sinks(attributes, graph, shape);
    auto [o, stats] =
        graph.sdpa(matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
                   matrix(graph, kV, shape, heads_of_v(shape), v), std::move(attributes));
    place(o, kO, shape, heads_of_o(shape), args.o.dtype, args.o.row_stride);
    place_stats(stats, shape);
  });
}

/// With sinks in cuDNN, which reads them in FP32. False if this cuDNN has no plan for them.
bool forward_with_sinks(const AttentionForwardArgs& args, Cudnn& cudnn, CudaContext& context) {
  if constexpr (!kHasSinks<frontend::graph::SDPA_attributes>) return false;
  const Plan& plan = forward_plan(args, cudnn, true);
  if (plan.graph == nullptr) return false;
  const std::size_t workspace = aligned_bytes(plan.workspace);
  std::byte* const scratch = context.scratch(workspace + static_cast<std::size_t>(args.shape.heads) * sizeof(float));
  MatrixView sinks = args.sinks;
  sinks.data = scratch + workspace;
  sinks.dtype = DType::kF32;
  sinks.row_stride = sinks.cols;
  sinks.col_stride = 1;
  cast({.in = args.sinks, .out = sinks}, context);
  Pointers pointers{{kQ, args.q.values.data}, {kK, args.k.values.data}, {kV, args.v.values.data},
                    {kO, args.o.data},        {kStats, args.lse.data},  {kSinks, sinks.data}};
  run(plan, cudnn, pointers, scratch);
  return true;
}

}  // namespace

bool attention_cudnn_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  for (const MatrixView* view : {&q, &k, &v, &args.o})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;

  auto& cudnn = context.kept<Cudnn>();
  if (args.sinks.data != nullptr && forward_with_sinks(args, cudnn, context)) return true;
  const Plan& plan = forward_plan(args, cudnn, false);
  if (plan.graph == nullptr) return false;
  Pointers pointers{{kQ, q.data}, {kK, k.data}, {kV, v.data}, {kO, args.o.data}, {kStats, args.lse.data}};
  run(plan, cudnn, pointers, context.scratch(plan.workspace));
  attention_join_sinks(args, context);
  return true;
}

bool attention_cudnn_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values, &o = args.o.values,
                   &grad_o = args.grad_o.values;
  for (const MatrixView* view : {&q, &k, &v, &o, &grad_o, &args.grad_q, &args.grad_k, &args.grad_v})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;
  if (q.row_stride > INT32_MAX || o.row_stride > INT32_MAX) return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key = key_of(context.deterministic() ? Direction::kBackward : Direction::kFastBackward, shape, q.dtype,
                         {q.row_stride << 32 | o.row_stride, k.row_stride, v.row_stride, grad_o.row_stride,
                          args.grad_q.row_stride, args.grad_k.row_stride, args.grad_v.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto [grad_q, grad_k, grad_v] = graph.sdpa_backward(
        matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
        matrix(graph, kV, shape, heads_of_v(shape), v), matrix(graph, kO, shape, heads_of_o(shape), o),
        matrix(graph, kGradO, shape, heads_of_o(shape), grad_o), stats_of(graph, shape),
        with_rule(frontend::graph::SDPA_backward_attributes().set_deterministic_algorithm(context.deterministic()),
                  shape));
    place(grad_q, kGradQ, shape, heads_of_q(shape), args.grad_q.dtype, args.grad_q.row_stride);
    place(grad_k, kGradK, shape, heads_of_k(shape), args.grad_k.dtype, args.grad_k.row_stride);
    place(grad_v, kGradV, shape, heads_of_v(shape), args.grad_v.dtype, args.grad_v.row_stride);
  });
  if (plan.graph == nullptr) return false;
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, o.data},
                    {kGradO, grad_o.data},
                    {kStats, args.lse.data},
                    {kGradQ, args.grad_q.data},
                    {kGradK, args.grad_k.data},
                    {kGradV, args.grad_v.data}};
  run(plan, cudnn, pointers, context.scratch(plan.workspace));
  return true;
}

}  // namespace fp8lab::cuda
