#pragma once

#include <array>
#include <string_view>

#include "backend/device.h"
#include "comm/process_group.h"

// Attention over sequences that ranks split between them (context parallelism). Every rank has the queries of its own
// tokens; keys and values travel around the ring of ranks, one neighbour a step, until each rank has had all of them.
// Attention over the keys of one rank is computed as attention.h defines it, and merged into that over the keys before
// by the logarithms of their sums, in FP32.
//
// A rank's tokens of a sequence are two chunks of equal length, of which the first is earlier in the sequence than the
// chunks of later ranks, and the second later than theirs: chunks r and 2 * ranks - 1 - r of 2 * ranks. So under a
// causal mask a pair of chunks is seen entirely, up to the diagonal, or not at all, and each rank computes equally
// many pairs in each step.
namespace fp8lab {

/// A matrix that attention reads: f32, f16 or bf16, or eight bits with one scale_inv, f32 [1].
struct AttentionMatrix {
  Tensor values;
  Tensor scale_inv{};

  OperandView operand() const;
  AttentionMatrix row_range(std::int64_t begin, std::int64_t count) const;
  AttentionMatrix columns(std::int64_t begin, std::int64_t count) const;
};

/// One tensor for each of a rank's two chunks.
using ByChunk = std::array<Tensor, 2>;

struct RingAttentionInputs {
  /// `seq`: this rank's tokens of a sequence, an even number, the same on all ranks. Without dropout and window.
  AttentionShape shape;
  ProcessGroup& ranks;
  AttentionMatrix q;    ///< [seq * batch, heads * head_dim]
  AttentionMatrix kv;   ///< [seq * batch, 2 * kv_heads * head_dim], contiguous: the columns of K, then of V
  AttentionRole s;      ///< as in attention.h; its amax is raised by every pair of chunks
  HolderId holder = 0;  ///< holder of all that is made
  std::string_view label;
};

struct RingAttentionOutputs {
  ByChunk o;    ///< f32 [seq / 2 * batch, heads * head_dim]
  ByChunk lse;  ///< f32 [batch * heads, seq / 2], over the keys of all ranks
  /// The keys and values that came last: the next rank's. Backward begins with them and sends the other way, so
  /// that the gradients of keys end at the rank that has the keys, after the same number of exchanges.
  AttentionMatrix kv;
};
/// Collective over `ranks`: size() - 1 exchanges. `inputs.kv` is released as soon as it has been sent.
RingAttentionOutputs ring_attention_forward(Device& device, RingAttentionInputs inputs);

struct RingAttentionBackwardInputs {
  AttentionShape shape;
  ProcessGroup& ranks;
  AttentionMatrix q;
  AttentionMatrix kv;      ///< RingAttentionOutputs::kv
  AttentionMatrix o;       ///< [seq * batch, heads * head_dim]
  AttentionMatrix grad_o;  ///< as `o`
  ByChunk lse;
  AttentionRole s;
  AttentionRole grad_p;
  HolderId holder = 0;
  std::string_view label;
};

struct RingAttentionGradients {
  Tensor q;  ///< f32 [seq * batch, heads * head_dim]
  Tensor
      kv;  ///< f32 [seq * batch, 2 * kv_heads * head_dim], of this rank's own keys and values, over all ranks' queries
};
/// Collective over `ranks`: size() - 1 exchanges, of keys and values and of their gradients so far.
RingAttentionGradients ring_attention_backward(Device& device, const RingAttentionBackwardInputs& inputs);

}  // namespace fp8lab
