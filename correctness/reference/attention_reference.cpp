#include "reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fp8lab::reference {
namespace {

/// The matrix of one head: value(i, j) of seq x seq, or of seq x head_dim.
struct HeadMatrix : Bounded {
  HeadMatrix(std::int64_t rows, std::int64_t cols) : Bounded(rows * cols), cols_(cols) {}
  std::size_t at(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * cols_ + j); }

 private:
  std::int64_t cols_;
};

class Head {
 public:
  Head(const AttentionProblem& problem, std::int64_t sequence, std::int64_t head)
      : problem_(problem), sequence_(sequence), head_(head), kv_head_(head / (problem.heads / problem.kv_heads)) {}

  std::size_t query(std::int64_t position, std::int64_t d) const { return element(position, head_, problem_.heads, d); }
  std::size_t key(std::int64_t position, std::int64_t d) const {
    return element(position, kv_head_, problem_.kv_heads, d);
  }
  std::size_t lse(std::int64_t position) const {
    return static_cast<std::size_t>((sequence_ * problem_.heads + head_) * problem_.seq + position);
  }
  bool visible(std::int64_t i, std::int64_t j) const {
    return (!problem_.causal || j <= i) && (problem_.window == 0 || i - j < problem_.window);
  }
  double dropout_factor(std::int64_t i, std::int64_t j) const {
    if (problem_.kept.empty()) return 1.0;
    const std::size_t entry = lse(i) * static_cast<std::size_t>(problem_.seq) + static_cast<std::size_t>(j);
    return problem_.kept[entry] != 0 ? 1.0 / (1.0 - problem_.dropout) : 0.0;
  }

 private:
  std::size_t element(std::int64_t position, std::int64_t head, std::int64_t heads, std::int64_t d) const {
    const std::int64_t token = position * problem_.batch + sequence_;
    return static_cast<std::size_t>((token * heads + head) * problem_.head_dim + d);
  }

  const AttentionProblem& problem_;
  std::int64_t sequence_;
  std::int64_t head_;
  std::int64_t kv_head_;
};

struct CastCount {
  double amax = 0.0;
  std::int64_t casts = 0;
  std::int64_t near_a_tie = 0;

  void apply(const AttentionCast& cast, double& value, double& error) {
    amax = std::max(amax, std::fabs(value));
    if (cast.format == nullptr) return;
    const auto rounded = [&](double x) {
      return cast.format->decode(cast.format->encode(x * cast.scale)) / cast.scale;
    };
    const double low = rounded(value - error);
    const double high = rounded(value + error);
    value = rounded(value);
    error = std::max(high - value, value - low);
    ++casts;
    if (error != 0) ++near_a_tie;
  }
  double fraction() const { return casts == 0 ? 0.0 : static_cast<double>(near_a_tie) / static_cast<double>(casts); }
};

/// The sum of a[i] b[i], and of the magnitudes of these terms.
struct Dot {
  double value = 0;
  double magnitude = 0;
  void add(double a, double b) {
    value += a * b;
    magnitude += std::fabs(a * b);
  }
};

/// P of one head, and the logarithm of each row's sum.
struct Softmax {
  HeadMatrix p;
  HeadMatrix lse;

  Softmax(const AttentionProblem& problem, const AttentionInputsReference& in, const Head& head)
      : p(problem.seq, problem.seq), lse(problem.seq, 1) {
    for (std::int64_t i = 0; i < problem.seq; ++i) {
      std::vector<Dot> logits(static_cast<std::size_t>(problem.seq));
      double maximum = -std::numeric_limits<double>::infinity();
      double largest = 0;  // the largest magnitude of any logit's terms in this row
      for (std::int64_t j = 0; j < problem.seq; ++j) {
        if (!head.visible(i, j)) continue;
        Dot& logit = logits[static_cast<std::size_t>(j)];
        for (std::int64_t d = 0; d < problem.head_dim; ++d)
          logit.add(in.q[head.query(i, d)] * problem.softmax_scale, in.k[head.key(j, d)]);
        maximum = std::max(maximum, logit.value);
        largest = std::max(largest, logit.magnitude);
      }
      double sum = 0;
      for (std::int64_t j = 0; j < problem.seq; ++j)
        if (head.visible(i, j)) sum += std::exp(logits[static_cast<std::size_t>(j)].value - maximum);
      // An error of the logits becomes an error of lse; the sum and its rounding add their own.
      const double log_seq = std::log(static_cast<double>(problem.seq));
      lse.value[lse.at(i, 0)] = maximum + std::log(sum);
      lse.error[lse.at(i, 0)] = problem.precision * (1.0 + 2.0 * largest + log_seq);
      for (std::int64_t j = 0; j < problem.seq; ++j) {
        if (!head.visible(i, j)) continue;
        const Dot& logit = logits[static_cast<std::size_t>(j)];
        p.value[p.at(i, j)] = std::exp(logit.value - maximum) / sum;
        // exp makes the absolute error of logit - lse into a relative one.
        const double relative = std::expm1(problem.precision * (2.0 + 2.0 * logit.magnitude + 2.0 * largest + log_seq));
        p.error[p.at(i, j)] = p.value[p.at(i, j)] * relative;
      }
    }
  }
};

/// P with dropout and its cast, as it enters the products with V and dO.
HeadMatrix dropped_and_cast(const AttentionProblem& problem, const Head& head, const HeadMatrix& p,
                            const AttentionCast& cast, CastCount& count) {
  HeadMatrix result = p;
  for (std::int64_t i = 0; i < problem.seq; ++i) {
    for (std::int64_t j = 0; j < problem.seq; ++j) {
      if (!head.visible(i, j)) continue;
      const std::size_t at = p.at(i, j);
      result.value[at] *= head.dropout_factor(i, j);
      result.error[at] *= head.dropout_factor(i, j);
      count.apply(cast, result.value[at], result.error[at]);
      result.error[at] += problem.rounding * std::fabs(result.value[at]);
    }
  }
  return result;
}

/// out[target] += left(i, j) * right; its error follows from the operand's error and the sum's.
void add_product(Bounded& out, std::size_t target, const HeadMatrix& left, std::size_t at, double right,
                 double precision) {
  out.value[target] += left.value[at] * right;
  out.error[target] += (left.error[at] + precision * std::fabs(left.value[at])) * std::fabs(right);
}

}  // namespace

AttentionForwardReference attention_forward(const AttentionProblem& problem, const AttentionInputsReference& inputs) {
  AttentionForwardReference result;
  result.o = Bounded(static_cast<std::int64_t>(inputs.q.size()));
  result.lse = Bounded(problem.batch * problem.heads * problem.seq);
  CastCount count;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const Head head(problem, sequence, h);
      const Softmax softmax(problem, inputs, head);
      const HeadMatrix p = dropped_and_cast(problem, head, softmax.p, inputs.s, count);
      for (std::int64_t i = 0; i < problem.seq; ++i) {
        result.lse.value[head.lse(i)] = softmax.lse.value[softmax.lse.at(i, 0)];
        result.lse.error[head.lse(i)] = softmax.lse.error[softmax.lse.at(i, 0)];
        for (std::int64_t j = 0; j < problem.seq; ++j)
          for (std::int64_t d = 0; d < problem.head_dim; ++d)
            add_product(result.o, head.query(i, d), p, p.at(i, j), inputs.v[head.key(j, d)], problem.precision);
      }
    }
  }
  result.amax_s = count.amax;
  result.casts_near_a_tie = count.fraction();
  return result;
}

AttentionBackwardReference attention_backward(const AttentionProblem& problem, const AttentionInputsReference& inputs,
                                              const std::vector<double>& o, const std::vector<double>& grad_o,
                                              const AttentionCast& grad_p) {
  AttentionBackwardReference result;
  result.grad_q = Bounded(static_cast<std::int64_t>(inputs.q.size()));
  result.grad_k = Bounded(static_cast<std::int64_t>(inputs.k.size()));
  result.grad_v = Bounded(static_cast<std::int64_t>(inputs.v.size()));
  const double precision = problem.precision;
  CastCount s_count;
  CastCount grad_p_count;
  for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const Head head(problem, sequence, h);
      const Softmax softmax(problem, inputs, head);
      const HeadMatrix p = dropped_and_cast(problem, head, softmax.p, inputs.s, s_count);
      HeadMatrix grad_s(problem.seq, problem.seq);
      for (std::int64_t i = 0; i < problem.seq; ++i) {
        Dot row_dot;
        for (std::int64_t d = 0; d < problem.head_dim; ++d) row_dot.add(o[head.query(i, d)], grad_o[head.query(i, d)]);
        for (std::int64_t j = 0; j < problem.seq; ++j) {
          if (!head.visible(i, j)) continue;
          const std::size_t at = grad_s.at(i, j);
          Dot product;
          for (std::int64_t d = 0; d < problem.head_dim; ++d)
            product.add(grad_o[head.query(i, d)], inputs.v[head.key(j, d)] * head.dropout_factor(i, j));
          const double difference = product.value - row_dot.value;
          grad_s.value[at] = softmax.p.value[at] * difference;
          grad_s.error[at] = softmax.p.error[at] * std::fabs(difference) +
                             softmax.p.value[at] * precision * (product.magnitude + row_dot.magnitude);
          grad_p_count.apply(grad_p, grad_s.value[at], grad_s.error[at]);
          grad_s.error[at] += problem.rounding * std::fabs(grad_s.value[at]);
        }
      }
      for (std::int64_t i = 0; i < problem.seq; ++i) {
        for (std::int64_t j = 0; j < problem.seq; ++j) {
          const std::size_t at = p.at(i, j);
          for (std::int64_t d = 0; d < problem.head_dim; ++d) {
            const double scale = problem.softmax_scale;
            add_product(result.grad_q, head.query(i, d), grad_s, at, inputs.k[head.key(j, d)] * scale, precision);
            add_product(result.grad_k, head.key(j, d), grad_s, at, inputs.q[head.query(i, d)] * scale, precision);
            add_product(result.grad_v, head.key(j, d), p, at, grad_o[head.query(i, d)], precision);
          }
        }
      }
    }
  }
  result.amax_s = s_count.amax;
  result.amax_grad_p = grad_p_count.amax;
  result.casts_near_a_tie = std::max(s_count.fraction(), grad_p_count.fraction());
  return result;
}

}  // namespace fp8lab::reference
