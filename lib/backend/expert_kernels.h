#pragma once

#include <cstdint>

#include "tensor/view.h"

// Arguments of the kernels that send tokens to experts and back, a part of the kernel table (backend/kernels.h).
namespace fp8lab {

/// The router of a mixture of experts, token by token. experts(t, k) is the expert with the (k + 1)-th largest of
/// logits(t, .); of equal logits the one with the lower number comes first, and NaN comes before every number.
/// weights(t, k) = exp(logits(t, experts(t, k))) / sum over j of exp(logits(t, experts(t, j))): the softmax over the
/// experts that were chosen, or, which is the same, the softmax over all of them divided by its sum over the chosen
/// ones. The largest logit is subtracted first; the sum runs in the order of k. With `sigmoid` the sigmoids of logits
/// take the place of their exponentials; the order of logits is the order of their sigmoids. Weights are multiplied by
/// `scale` last.
///
/// With biases or groups the choice follows scores instead of logits: score(t, e) = sigmoid(logits(t, e)) + biases[e],
/// rounded once. Groups are runs of experts / groups experts. The score of a group is the sum of its two largest
/// scores, and only experts of the `top_groups` groups with the largest scores can be chosen. Ties and NaN are ordered
/// as above, groups by their numbers. Weights do not read biases.
struct RouteArgs {
  MatrixView logits;   ///< f32 [tokens, experts]
  MatrixView experts;  ///< i32 [tokens, k]
  MatrixView weights;  ///< f32 [tokens, k]
  bool sigmoid = false;
  float scale = 1.0f;
  /// f32 [tokens, k], with `sigmoid`: the derivative of the logarithm of each sigmoid by its logit, which is the
  /// sigmoid of the negative logit. Absent (data null) otherwise.
  MatrixView slopes{};
  MatrixView biases{};      ///< f32 [1, experts], contiguous, only with `sigmoid`; or absent
  std::int64_t groups = 1;  ///< divides the experts, at most kMostExpertGroups; above 1 only with `sigmoid`
  std::int64_t top_groups = 1;
  /// f32 [1, experts], contiguous: gets the number of choices of each expert added. Exact up to 2^24. Or absent.
  MatrixView counts{};
};
/// A thread of a warp has the score of one group.
inline constexpr std::int64_t kMostExpertGroups = 32;

/// The rule by which biases balance the choice of experts (DeepSeek-V3): biases[e] rises by `rate` if counts[e] is
/// below the mean of all counts, and falls by `rate` if it is above. Counts are then 0.
struct BalanceExpertsArgs {
  MatrixView counts;  ///< f32 [1, experts], integers; contiguous, as biases are
  MatrixView biases;  ///< f32 [1, experts]
  float rate = 0.0f;
};

/// grad_logits(t, experts(t, k)) = slopes(t, k) weights(t, k) (grad_weights(t, k) - sum over j of weights(t, j)
/// grad_weights(t, j) / scale), the sum in the order of j; 0 for experts that were not chosen. Slopes are 1 if absent.
///
/// With `logits` the gradient of the auxiliary loss is added before the sum is rounded. The loss is aux times the sum
/// over experts of counts[e] times the sum over tokens of p(t, e), where p(t, .) is the softmax of logits(t, .), or
/// their sigmoids divided by the sum of these. Its gradient is f p(t, e) (s[e] - sum over i of p(t, i) s[i]);
/// s[e] is aux (counts[e] - even_count()); f is 1, and with `sigmoid` the sigmoid of the negative logit. In a sum over
/// experts expert e goes to partial sum e % kRouterSums, in the order of e; then neighbours are added pairwise, until
/// one sum is left.
struct RouteBackwardArgs {
  MatrixView experts;
  MatrixView weights;
  MatrixView slopes{};
  float scale = 1.0f;
  MatrixView grad_weights;  ///< f32 [tokens, k]
  MatrixView grad_logits;   ///< [tokens, experts]
  MatrixView logits{};      ///< f32 [tokens, experts]; absent: no auxiliary loss
  MatrixView counts{};      ///< with logits: f32 [1, experts], contiguous, the number of choices of each expert
  float aux = 0.0f;
  bool sigmoid = false;
};
inline constexpr int kRouterSums = 32;

/// The choices of each expert if tokens are even. Counts less this number have the same gradient, because only their
/// differences matter, and keep the bits of small differences.
inline float even_count(const RouteBackwardArgs& args) {
  return static_cast<float>(args.experts.rows * args.experts.cols) / static_cast<float>(args.logits.cols);
}

/// Gives each choice (t, k) a row of a matrix in which the rows of an expert follow each other, in the order of t and
/// then k. Expert e begins at row begins[e], a multiple of `multiple`; begins[experts] is the end of the last one,
/// rounded up likewise. rows(t, k) is the choice's row, and sources[row] its number t * K + k; -1 for rows of padding.
struct GroupRowsArgs {
  MatrixView experts;  ///< i32 [tokens, K]
  std::int64_t multiple = 1;
  MatrixView rows;     ///< i32 [tokens, K]
  MatrixView sources;  ///< i32 [rows of the matrix, 1]
  MatrixView begins;   ///< i32 [experts + 1, 1]
};

/// out(r, .) = weight * in(sources[r] / K, .) with the weight of choice sources[r]; 0 for rows of padding. Without
/// weights elements are moved as they are, whatever their type, and rows of padding have zero bytes.
struct PermuteArgs {
  MatrixView in;             ///< [tokens, columns]
  MatrixView sources;        ///< i32 [rows, 1]
  std::int64_t choices = 1;  ///< K
  MatrixView weights;        ///< f32 [tokens, K] or absent (data null)
  MatrixView out;            ///< [rows, columns]
};

/// out(t, .) = sum over k of weights(t, k) * in(rows(t, k), .), in FP32 in the order of k; weights are 1 if absent.
struct UnpermuteArgs {
  MatrixView in;    ///< [rows, columns]
  MatrixView rows;  ///< i32 [tokens, K]
  MatrixView weights;
  MatrixView out;  ///< [tokens, columns]
};

/// grad_weights(t, k) = sum over columns of grad_out(t, .) * in(rows(t, k), .), order: core/sum_order.h.
struct UnpermuteWeightsArgs {
  MatrixView in;
  MatrixView rows;
  MatrixView grad_out;
  MatrixView grad_weights;  ///< f32 [tokens, K]
};

}  // namespace fp8lab
