#pragma once

#include <cstdint>
#include <vector>

#include "reference/expected.h"

/// Norms, activations, rotary embedding and Adam by their definitions in double precision. Gradients are differences of
/// the forward function, so they share no formula with the code under test. Errors are the errors of an FP32
/// implementation, to first order; rounded_to() adds the rounding to the output's type.
namespace fp8lab::reference {

using Values = std::vector<double>;

/// a [rows, inner] times the transpose of b [cols, inner], plus `bias`, which may be empty, in any order of the
/// products and sums: a term passes through at most `inner` roundings, two for scales, one for the bias and one for
/// accumulation.
Expected product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const Values& a, const Values& b,
                 const Values& bias);

struct NormProblem {
  bool centred = true;  ///< true: LayerNorm; false: RMSNorm
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  double epsilon = 1e-5;
};
struct NormParameters {
  Values gamma;
  Values beta;  ///< empty for RMSNorm
};

struct NormExpected {
  Expected y;
  Expected mean;
  Expected rstd;
};
NormExpected norm_forward(const NormProblem& problem, const Values& x, const NormParameters& parameters);

struct NormGradientExpected {
  Expected x;
  Expected gamma;
  Expected beta;
};
NormGradientExpected norm_backward(const NormProblem& problem, const Values& x, const NormParameters& parameters,
                                   const Values& grad_y);

Expected gelu(const Values& x);
Expected gelu_gradient(const Values& x, const Values& grad_y);
/// x is [rows, 2 cols] = (gate | up).
Expected swiglu(std::int64_t rows, std::int64_t cols, const Values& x);
Expected swiglu_gradient(std::int64_t rows, std::int64_t cols, const Values& x, const Values& grad_y);
Expected geglu(std::int64_t rows, std::int64_t cols, const Values& x);
Expected geglu_gradient(std::int64_t rows, std::int64_t cols, const Values& x, const Values& grad_y);

struct RopeProblem {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  double base = 10000.0;
};
/// Complex number d of a head, (x[d], x[d + head_dim / 2]), times exp(i position base^(-2 d / head_dim)); token =
/// position * batch + sequence.
Expected rope(const RopeProblem& problem, const Values& x);

struct AdamProblem {
  double learning_rate = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double epsilon = 0.0;
  double weight_decay = 0.0;
  bool decoupled_decay = true;
  int step = 1;  ///< counts from 1
};
struct AdamState {
  Values param;
  Values exp_avg;
  Values exp_avg_sq;
};
struct AdamExpected {
  Expected param;
  Expected exp_avg;
  Expected exp_avg_sq;
};
/// One step from `state`.
AdamExpected adam(const AdamProblem& problem, const AdamState& state, const Values& grad);

}  // namespace fp8lab::reference
