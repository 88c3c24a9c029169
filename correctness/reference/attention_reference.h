#pragma once

#include <cstdint>
#include <vector>

#include "reference/float8_reference.h"

// Attention by its definition in double precision, with every S x S matrix in memory. Each result has a bound of the
// error that an implementation in lower precision may have, carried through the formulas to first order, so that no
// test has to guess a tolerance.
namespace fp8lab::reference {

struct AttentionProblem {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool causal = true;
  std::int64_t window = 0;  ///< keys that a query sees at most, its own included; 0: no limit
  double softmax_scale = 1.0;
  double dropout = 0.0;
  /// Whether dropout keeps an entry of [batch, heads, seq, seq]; empty: all are kept.
  std::vector<std::uint8_t> kept;
  /// The relative error of a sum of products against the sum of their magnitudes, in the implementation under test.
  double precision = 0.0;
  /// The relative error of P and of dS when they enter a product, in implementations that round them to a narrower type
  /// there.
  double rounding = 0.0;
};

/// x becomes decode(encode(x * scale)) / scale; without a format it stays as it is.
struct AttentionCast {
  const SmallFloat* format = nullptr;
  double scale = 1.0;
};

/// Values, and how far from each an implementation of the given precision may be. A cast whose argument lies within the
/// error of a tie may round either way; the bound allows both.
struct Bounded {
  explicit Bounded(std::int64_t size = 0)
      : value(static_cast<std::size_t>(size)), error(static_cast<std::size_t>(size)) {}
  std::vector<double> value;
  std::vector<double> error;
};

struct AttentionForwardReference {
  Bounded o;    ///< [seq * batch, heads * head_dim]
  Bounded lse;  ///< [batch * heads, seq]
  double amax_s = 0.0;
  double casts_near_a_tie = 0.0;  ///< as a fraction of all casts
};

/// Inputs are [seq * batch, heads * head_dim], token = position * batch + sequence.
struct AttentionInputsReference {
  std::vector<double> q;
  std::vector<double> k;
  std::vector<double> v;
  AttentionCast s;
};
AttentionForwardReference attention_forward(const AttentionProblem& problem, const AttentionInputsReference& inputs);

struct AttentionBackwardReference {
  Bounded grad_q;
  Bounded grad_k;
  Bounded grad_v;
  double amax_s = 0.0;
  double amax_grad_p = 0.0;
  double casts_near_a_tie = 0.0;
};

/// The gradient as backend/kernels.h defines it: D = rowsum(grad_o * o) of the `o` given here.
AttentionBackwardReference attention_backward(const AttentionProblem& problem, const AttentionInputsReference& inputs,
                                              const std::vector<double>& o, const std::vector<double>& grad_o,
                                              const AttentionCast& grad_p = {});

}  // namespace fp8lab::reference
