#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/kernels.h"

namespace fp8lab::attention_test {

/// Single rows of attention without dropout in double precision, from the operands' values.
class RowReference {
 public:
  RowReference(const AttentionShape& shape, std::vector<double> q, std::vector<double> k, std::vector<double> v)
      : shape_(shape), q_(std::move(q)), k_(std::move(k)), v_(std::move(v)) {}

  struct Row {
    std::vector<double> value;
    std::vector<double> spread;  ///< the sum of the magnitudes of the terms of `value`
    double lse = 0;
  };
  /// O of one query.
  Row o(std::int64_t sequence, std::int64_t head, std::int64_t query) const {
    Row row{std::vector<double>(dim()), std::vector<double>(dim()), 0};
    const std::vector<double> p = probabilities(sequence, head, query, row.lse);
    for (std::size_t j = 0; j < p.size(); ++j) add(row, p[j], &v_[key(sequence, head, static_cast<std::int64_t>(j))]);
    return row;
  }
  /// dQ of one query, from `o` and `grad_o` of all queries.
  Row grad_q(std::int64_t sequence, std::int64_t head, std::int64_t query, const std::vector<double>& o,
             const std::vector<double>& grad_o) const {
    Row row{std::vector<double>(dim()), std::vector<double>(dim()), 0};
    const std::vector<double> p = probabilities(sequence, head, query, row.lse);
    const std::size_t at = this->query(sequence, head, query);
    const double sum = dot(&o[at], &grad_o[at]);
    for (std::size_t j = 0; j < p.size(); ++j) {
      const std::size_t of_key = key(sequence, head, static_cast<std::int64_t>(j));
      add(row, p[j] * (dot(&grad_o[at], &v_[of_key]) - sum) * static_cast<double>(shape_.softmax_scale), &k_[of_key]);
    }
    return row;
  }
  std::size_t query(std::int64_t sequence, std::int64_t head, std::int64_t position) const {
    return static_cast<std::size_t>(((position * shape_.batch + sequence) * shape_.heads + head) * shape_.head_dim);
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(shape_.head_dim); }
  std::size_t key(std::int64_t sequence, std::int64_t head, std::int64_t position) const {
    const std::int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    return static_cast<std::size_t>(((position * shape_.batch + sequence) * shape_.kv_heads + kv_head) *
                                    shape_.head_dim);
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (std::size_t d = 0; d < dim(); ++d) sum += a[d] * b[d];
    return sum;
  }
  void add(Row& row, double weight, const double* values) const {
    for (std::size_t d = 0; d < dim(); ++d) {
      row.value[d] += weight * values[d];
      row.spread[d] += std::fabs(weight * values[d]);
    }
  }
  std::vector<double> probabilities(std::int64_t sequence, std::int64_t head, std::int64_t position,
                                    double& lse) const {
    std::vector<double> p(static_cast<std::size_t>(shape_.causal ? position + 1 : shape_.seq));
    double sum = 0;
    for (auto j = static_cast<std::size_t>(shape_.first_key(position)); j < p.size(); ++j) {
      p[j] =
          std::exp(static_cast<double>(shape_.softmax_scale) *
                   dot(&q_[query(sequence, head, position)], &k_[key(sequence, head, static_cast<std::int64_t>(j))]));
      sum += p[j];
    }
    for (double& x : p) x /= sum;
    lse = std::log(sum);
    return p;
  }

  AttentionShape shape_;
  std::vector<double> q_, k_, v_;
};

}  // namespace fp8lab::attention_test
