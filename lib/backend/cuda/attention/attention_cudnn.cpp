#include <algorithm>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/cudnn_graph.h"
#include "backend/cuda/attention/cudnn_library.h"
#include "core/shape.h"

// Attention through cuDNN of operands in 16 bits.
namespace fp8lab::cuda {

using namespace cudnn;

const std::string& cudnn_unavailable_reason() { return load_cudnn(); }

bool attention_cudnn_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  for (const MatrixView* view : {&q, &k, &v, &args.o})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key =
      key_of(Direction::kForward, shape, q.dtype, {q.row_stride, k.row_stride, v.row_stride, args.o.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto [o, stats] =
        graph.sdpa(matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
                   matrix(graph, kV, shape, heads_of_v(shape), v),
                   with_rule(frontend::graph::SDPA_attributes().set_generate_stats(true), shape));
    place(o, kO, shape, heads_of_o(shape), args.o.dtype, args.o.row_stride);
    place_stats(stats, shape);
  });
  if (plan.graph == nullptr) return false;
  Pointers pointers{{kQ, q.data}, {kK, k.data}, {kV, v.data}, {kO, args.o.data}, {kStats, args.lse.data}};
  run(plan, cudnn, pointers, context.scratch(plan.workspace));
  attention_join_sinks(args, context);
  return true;
}

namespace {

/// cuDNN's deterministic gradients keep dP of all heads of a call in 16 bits, seq x seq each. They are computed for as
/// many heads at once as have 512 MiB of that.
std::int64_t heads_at_once(const AttentionShape& shape, bool deterministic) {
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 20, kPadding = 64;
  if (!deterministic || shape.kv_heads != shape.heads) return shape.heads;
  const std::int64_t seq = round_up(shape.seq, kPadding);
  return std::clamp<std::int64_t>(kMostBytes / (2 * shape.batch * seq * seq), 1, shape.heads);
}

/// The arguments of `count` heads from `first` on; each head has keys and values of its own.
AttentionBackwardArgs heads_of(const AttentionBackwardArgs& args, std::int64_t first, std::int64_t count) {
  if (count == args.shape.heads) return args;
  AttentionBackwardArgs part = args;
  part.shape.heads = part.shape.kv_heads = count;
  const std::int64_t keys = args.shape.head_dim, values = args.shape.columns_of_value();
  for (MatrixView* view : {&part.q.values, &part.k.values, &part.grad_q, &part.grad_k})
    *view = view->columns(first * keys, count * keys);
  for (MatrixView* view : {&part.v.values, &part.o.values, &part.grad_o.values, &part.grad_v})
    *view = view->columns(first * values, count * values);
  part.lse.data += first * args.lse.row_stride * static_cast<std::int64_t>(sizeof(float));
  return part;
}

/// `all_heads`: the heads of args.lse.
bool differentiate(const AttentionBackwardArgs& args, std::int64_t all_heads, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values, &o = args.o.values,
                   &grad_o = args.grad_o.values;
  auto& cudnn = context.kept<Cudnn>();
  const Key key = key_of(context.deterministic() ? Direction::kBackward : Direction::kFastBackward, shape, q.dtype,
                         {q.row_stride << 32 | o.row_stride, k.row_stride, v.row_stride, grad_o.row_stride,
                          args.grad_q.row_stride, args.grad_k.row_stride, args.grad_v.row_stride, all_heads});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto [grad_q, grad_k, grad_v] = graph.sdpa_backward(
        matrix(graph, kQ, shape, heads_of_q(shape), q), matrix(graph, kK, shape, heads_of_k(shape), k),
        matrix(graph, kV, shape, heads_of_v(shape), v), matrix(graph, kO, shape, heads_of_o(shape), o),
        matrix(graph, kGradO, shape, heads_of_o(shape), grad_o), stats_of(graph, shape, all_heads),
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

}  // namespace

bool attention_cudnn_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &o = args.o.values;
  for (const MatrixView* view :
       {&q, &args.k.values, &args.v.values, &o, &args.grad_o.values, &args.grad_q, &args.grad_k, &args.grad_v})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;
  if (q.row_stride > INT32_MAX || o.row_stride > INT32_MAX) return false;
  const std::int64_t step = heads_at_once(shape, context.deterministic());
  for (std::int64_t first = 0; first < shape.heads; first += step) {
    const std::int64_t count = std::min(step, shape.heads - first);
    if (!differentiate(heads_of(args, first, count), shape.heads, context)) return false;
  }
  return true;
}

}  // namespace fp8lab::cuda
