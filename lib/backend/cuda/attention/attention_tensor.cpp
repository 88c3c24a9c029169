#include "backend/cuda/attention/attention_tensor.h"

#include "backend/cuda/attention/attention.h"
#include "core/float8_format.h"
#include "core/shape.h"

namespace fp8lab::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

/// Divides scratch memory into pieces of multiples of kAlignment.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : memory_(memory) {}
  std::byte* take(std::int64_t bytes) {
    std::byte* const piece = memory_;
    memory_ += round_up(bytes, kAlignment);
    return piece;
  }

 private:
  std::byte* memory_;
};

std::int64_t widened_bytes(const OperandView& operand) {
  return operand.quantized() ? round_up(2 * operand.values.numel(), kAlignment) : 0;
}

/// The operand itself if it is bf16, or a bf16 copy of its FP8 data in scratch.
WideOperand widen(const OperandView& operand, Scratch& scratch, CudaContext& context) {
  if (!operand.quantized())
    return {.data = operand.values.data, .row_stride = operand.values.row_stride, .scale_inv = nullptr};
  std::byte* const wide = scratch.take(2 * operand.values.numel());
  widen_data(operand.values, wide, context);
  return {.data = wide,
          .row_stride = operand.values.cols,
          .scale_inv = reinterpret_cast<const float*>(operand.scales.data)};
}

}  // namespace

void attention_tensor_forward(const AttentionForwardArgs& args, CudaContext& context) {
  if (args.o.rows == 0) return;
  Scratch scratch(
      context.scratch(static_cast<std::size_t>(widened_bytes(args.q) + widened_bytes(args.k) + widened_bytes(args.v))));
  TensorForward call{
      .shape = args.shape, .q = {}, .k = {}, .v = {}, .o = args.o, .lse = args.lse, .s = args.s, .sinks = args.sinks};
  call.q = widen(args.q, scratch, context);
  call.k = widen(args.k, scratch, context);
  call.v = widen(args.v, scratch, context);
  launch_tensor_forward(call, context);
}

void attention_tensor_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  if (args.grad_q.rows == 0) return;
  const AttentionShape& shape = args.shape;
  const std::int64_t queries = shape.batch * shape.heads * round_up(shape.seq, kBackwardQueries);
  const std::int64_t rows = queries * 2 * 4, sums = queries * shape.head_dim * 4,
                     arrivals = queries / kBackwardQueries * 2 * 4;
  Scratch scratch(context.scratch(static_cast<std::size_t>(
      widened_bytes(args.q) + widened_bytes(args.k) + widened_bytes(args.v) + widened_bytes(args.grad_o) +
      round_up(rows, kAlignment) + round_up(sums, kAlignment) + round_up(arrivals, kAlignment) + kAlignment)));
  TensorBackward call{.shape = shape,
                      .q = {},
                      .k = {},
                      .v = {},
                      .grad_o = {},
                      .o_data = args.o,
                      .grad_o_data = args.grad_o,
                      .lse = args.lse,
                      .rows = reinterpret_cast<float*>(scratch.take(rows)),
                      .grad_q_sums = reinterpret_cast<float*>(scratch.take(sums)),
                      .arrivals = reinterpret_cast<unsigned*>(scratch.take(arrivals)),
                      .next_job = reinterpret_cast<unsigned*>(scratch.take(4)),
                      .grad_q = args.grad_q,
                      .grad_k = args.grad_k,
                      .grad_v = args.grad_v,
                      .s = args.s,
                      .grad_p = args.grad_p};
  call.q = widen(args.q, scratch, context);
  call.k = widen(args.k, scratch, context);
  call.v = widen(args.v, scratch, context);
  call.grad_o = widen(args.grad_o, scratch, context);
  launch_tensor_backward(call, context);
  attention_sink_gradients(args,
                           {.data = call.rows + kBackwardQueries,
                            .tile = kBackwardQueries,
                            .tile_step = 2 * kBackwardQueries,
                            .negative = true},
                           context);
}

}  // namespace fp8lab::cuda
