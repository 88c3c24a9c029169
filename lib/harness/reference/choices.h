#pragma once

#include <cstdint>
#include <vector>

#include "harness/reference/matrix.h"

// Which experts the tokens of a mixture go to, and with which weights.
namespace fp8lab::reference_step {

/// The choices of all tokens, one after the other: the expert and the weight.
struct Choices {
  std::int64_t of_token = 0;
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
  std::vector<double> slopes;  ///< derivatives of the logarithms of what weights are in proportion to, by logits

  std::int64_t count() const { return static_cast<std::int64_t>(experts.size()); }
  std::int64_t token(std::int64_t choice) const { return choice / of_token; }
};

/// What a router reads: the norm's output as it is stored, its weight, and what the choice follows.
struct RouterInputs {
  const Matrix& n;
  const Matrix& weight;
  Matrix scores;               ///< logits; with biases or groups, choose() makes sigmoids of them and adds the biases
  double step;                 ///< a step of the type of `n`, relative to a number of it
  std::vector<double> biases;  ///< empty: none
  std::int64_t groups;         ///< 0: a token may have any experts
  std::int64_t top_groups;

  std::int64_t group_of(std::int64_t expert) const { return expert / (scores.cols / groups); }
  bool has_sigmoids() const { return !biases.empty() || groups > 0; }
  /// The most by which two correct steps differ in the score of `a` minus the score of `b`: two steps of the largest
  /// term of the logits; of sigmoids one, and their rounding to FP32.
  double most_apart(std::int64_t token, std::int64_t a, std::int64_t b) const;
};

/// Sets the experts of all tokens: those with the largest scores, of equal ones those with the lower numbers, largest
/// first. With groups, only experts of the groups whose two largest scores have the largest sums. `seen`: the runtime's
/// choices, or null; they are taken for tokens whose scores, or whose scores of groups, are nearly tied.
void choose(RouterInputs router, const std::vector<std::int32_t>* seen, Choices& out);

/// Sets the weights of each token's chosen experts: shares of `total` in proportion to sigmoids of logits, or to their
/// exponentials.
void weigh(const Matrix& logits, bool sigmoids, double total, Choices& out);

}  // namespace fp8lab::reference_step
