#include "harness/reference/choices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fp8lab::reference_step {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Two steps of a sigmoid's type, FP32, relative to it.
constexpr double kRoundings = 0x1p-22;

bool has(const Numbers& list, std::int64_t number) { return std::ranges::find(list, number) != list.end(); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Numbers from 0 to `count` - 1, those with the largest values first, of equal values the lower number.
template <class ValueOf>
Numbers by_value(std::int64_t count, const ValueOf& value_of) {
  Numbers order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return value_of(a) > value_of(b); });
  return order;
}

/// The groups of one token.
class Groups {
 public:
  Groups(const RouterInputs& router, std::int64_t token)
      : router_(router), token_(token), size_(router.scores.cols / router.groups) {
    for (std::int64_t g = 0; g < router.groups; ++g) {
      const double* const first = router.scores.row(token) + g * size_;
      std::vector<double> scores(first, first + size_);
      std::ranges::partial_sort(scores, scores.begin() + 2, std::ranges::greater());
      scores_.push_back(scores[0] + scores[1]);
    }
  }

  Numbers best() const {
    Numbers order = by_value(router_.groups, [&](std::int64_t g) { return scores_[static_cast<std::size_t>(g)]; });
    order.resize(static_cast<std::size_t>(router_.top_groups));
    return order;
  }
  /// `own`, or with the groups of `seen` in place of the last ones of `own`, if these are nearly tied.
  Numbers nearly(const Numbers& own, const Numbers& seen) const {
    Numbers kept;
    for (const std::int64_t expert : seen)
      if (expert >= 0 && expert < router_.scores.cols && !has(kept, router_.group_of(expert)))
        kept.push_back(router_.group_of(expert));
    if (kept.size() > own.size()) return own;
    for (const std::int64_t group : own)
      if (kept.size() < own.size() && !has(kept, group)) kept.push_back(group);
    for (const std::int64_t other : kept)
      for (const std::int64_t group : own)
        if (!has(own, other) && !has(kept, group) && !are_nearly_tied(group, other)) return own;
    return kept;
  }

 private:
  /// Two scores of each group are added.
  bool are_nearly_tied(std::int64_t group, std::int64_t other) const {
    double apart = 0.0;
    for (std::int64_t i = 0; i < size_; ++i)
      for (std::int64_t j = 0; j < size_; ++j)
        apart = std::max(apart, router_.most_apart(token_, group * size_ + i, other * size_ + j));
    return scores_[static_cast<std::size_t>(group)] - scores_[static_cast<std::size_t>(other)] <= 2.0 * apart;
  }

  const RouterInputs& router_;
  std::int64_t token_, size_;
  std::vector<double> scores_;
};

/// The experts with the largest scores, of groups in `open` if there are groups.
Numbers largest_of(const RouterInputs& router, std::int64_t token, std::int64_t count, const Numbers& open) {
  const double* const scores = router.scores.row(token);
  Numbers order = by_value(router.scores.cols, [&](std::int64_t e) { return scores[e]; });
  if (router.groups > 0) std::erase_if(order, [&](std::int64_t e) { return !has(open, router.group_of(e)); });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

/// `own`, or the experts in `seen` if each of them that is not in `own` can be chosen and is nearly tied with each of
/// `own` that it replaces.
Numbers nearly(const RouterInputs& router, std::int64_t token, const Numbers& own, const Numbers& open,
               const Numbers& seen) {
  const double* const scores = router.scores.row(token);
  Numbers kept;
  for (const std::int64_t expert : own)
    if (has(seen, expert)) kept.push_back(expert);
  for (const std::int64_t other : seen) {
    if (has(kept, other)) {
      if (std::ranges::count(seen, other) != 1) return own;
      continue;
    }
    if (other < 0 || other >= router.scores.cols) return own;
    if (router.groups > 0 && !has(open, router.group_of(other))) return own;
    for (const std::int64_t expert : own)
      if (!has(seen, expert) && !(scores[expert] - scores[other] <= router.most_apart(token, expert, other)))
        return own;
    kept.push_back(other);
  }
  return kept;
}

Numbers experts_of(const RouterInputs& router, std::int64_t token, std::int64_t count, const Numbers& seen) {
  Numbers open;
  if (router.groups > 0) {
    const Groups groups(router, token);
    open = groups.nearly(groups.best(), seen);
  }
  const Numbers own = largest_of(router, token, count, open);
  return seen.empty() ? own : nearly(router, token, own, open, seen);
}

}  // namespace

double RouterInputs::most_apart(std::int64_t token, std::int64_t a, std::int64_t b) const {
  double largest = 0.0;
  for (std::int64_t j = 0; j < n.cols; ++j)
    largest = std::max(largest, std::abs(n.row(token)[j]) * (std::abs(weight.row(a)[j]) + std::abs(weight.row(b)[j])));
  if (!has_sigmoids()) return 2.0 * step * largest;
  // Each of the two logits changes its sigmoid by a quarter of its own change at most.
  const double* const row = scores.row(token);
  return step * largest + kRoundings * (std::abs(row[a]) + std::abs(row[b]));
}

void choose(RouterInputs router, const std::vector<std::int32_t>* seen, Choices& out) {
  Matrix& scores = router.scores;
  for (std::int64_t t = 0; router.has_sigmoids() && t < scores.rows; ++t)
    for (std::int64_t e = 0; e < scores.cols; ++e)
      scores.row(t)[e] =
          sigmoid(scores.row(t)[e]) + (router.biases.empty() ? 0.0 : router.biases[static_cast<std::size_t>(e)]);
  const bool has_seen = seen != nullptr && std::ssize(*seen) == scores.rows * out.of_token;
  for (std::int64_t t = 0; t < scores.rows; ++t) {
    Numbers of_token;
    if (has_seen) of_token.assign(seen->begin() + t * out.of_token, seen->begin() + (t + 1) * out.of_token);
    const Numbers experts = experts_of(router, t, out.of_token, of_token);
    out.experts.insert(out.experts.end(), experts.begin(), experts.end());
  }
}

void weigh(const Matrix& logits, bool sigmoids, double total, Choices& out) {
  for (std::int64_t first = 0; first < out.count(); first += out.of_token) {
    const double* const row = logits.row(out.token(first));
    const auto logit = [&](std::int64_t choice) { return row[out.experts[static_cast<std::size_t>(choice)]]; };
    std::vector<double> scores;
    for (std::int64_t k = first; k < first + out.of_token; ++k) {
      scores.push_back(sigmoids ? sigmoid(logit(k)) : std::exp(logit(k) - logit(first)));
      out.slopes.push_back(sigmoids ? sigmoid(-logit(k)) : 1.0);
    }
    const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    for (const double score : scores) out.weights.push_back(total * score / sum);
  }
}

}  // namespace fp8lab::reference_step
