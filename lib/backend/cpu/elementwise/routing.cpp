#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/row_sum.h"
#include "backend/cpu/rows.h"
#include "core/elementary.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kLogits, kRow, kSum };

std::int32_t& number_at(const MatrixView& matrix, std::int64_t row, std::int64_t col) {
  return matrix.as<std::int32_t>()[row * matrix.row_stride + col * matrix.col_stride];
}
float& float_at(const MatrixView& matrix, std::int64_t row, std::int64_t col) {
  return matrix.as<float>()[row * matrix.row_stride + col * matrix.col_stride];
}

/// True if a logit is chosen before another one with a lower number.
bool comes_before(float logit, float other) { return logit > other || (std::isnan(logit) && !std::isnan(other)); }

/// Row `to` of `out` gets the bytes of row `from` of `in`, or zeros if that is negative.
void move_row(const MatrixView& in, std::int64_t from, const MatrixView& out, std::int64_t to) {
  const auto size = static_cast<std::int64_t>(size_bytes(out.dtype));
  std::byte* const written = out.data + to * out.row_stride * size;
  const std::byte* const read = from < 0 ? nullptr : in.data + from * in.row_stride * size;
  const bool together = out.col_stride == 1 && in.col_stride == 1;
  const std::int64_t pieces = together ? 1 : out.cols;
  const auto bytes = static_cast<std::size_t>(together ? out.cols * size : size);
  for (std::int64_t j = 0; j < pieces; ++j) {
    std::byte* const piece = written + j * out.col_stride * size;
    if (read == nullptr)
      std::memset(piece, 0, bytes);
    else
      std::memcpy(piece, read + j * in.col_stride * size, bytes);
  }
}

/// Takes the largest of `values` from `begin` to `end` that is not taken yet, of equal ones the first.
std::int64_t take_largest(const float* values, std::int64_t begin, std::int64_t end, std::uint8_t* taken) {
  std::int64_t best = -1;
  for (std::int64_t i = begin; i < end; ++i)
    if (taken[i] == 0 && (best < 0 || comes_before(values[i], values[best]))) best = i;
  taken[best] = 1;
  return best;
}

/// Marks the experts as taken that are in other groups than the best ones.
void close_groups(const RouteArgs& args, const float* scores, std::uint8_t* taken) {
  const std::int64_t experts = args.logits.cols, size = experts / args.groups;
  std::array<float, kMostExpertGroups> of_groups{};
  for (std::int64_t g = 0; g < args.groups; ++g) {
    const std::int64_t first = take_largest(scores, g * size, (g + 1) * size, taken);
    const std::int64_t second = take_largest(scores, g * size, (g + 1) * size, taken);
    of_groups[static_cast<std::size_t>(g)] = scores[first] + scores[second];
  }
  std::fill_n(taken, experts, std::uint8_t{1});
  std::array<std::uint8_t, kMostExpertGroups> open{};
  for (std::int64_t i = 0; i < args.top_groups; ++i)
    std::fill_n(taken + take_largest(of_groups.data(), 0, args.groups, open.data()) * size, size, std::uint8_t{0});
}

/// The sum of a number for each expert, in the order of RouteBackwardArgs.
template <class Term>
float sum_over_experts(std::int64_t experts, const Term& term) {
  std::array<float, kRouterSums> sums{};
  for (std::int64_t e = 0; e < experts; ++e) sums[static_cast<std::size_t>(e % kRouterSums)] += term(e);
  for (std::size_t width = 1; width < sums.size(); width *= 2)
    for (std::size_t i = 0; i < sums.size(); i += 2 * width) sums[i] += sums[i + width];
  return sums[0];
}

/// Adds the gradient of a token's part of the auxiliary loss to the `row` of its logits.
void add_auxiliary_gradient(const RouteBackwardArgs& args, const float* logits, float* row) {
  const std::int64_t experts = args.logits.cols;
  const float largest = *std::max_element(logits, logits + experts);
  const auto score = [&](std::int64_t e) {
    return args.sigmoid ? sigmoid(logits[e]) : exponential(logits[e] - largest);
  };
  const float all = sum_over_experts(experts, score);
  const auto share = [&](std::int64_t e) { return score(e) / all; };
  const float even = even_count(args);
  const auto slope = [&](std::int64_t e) { return args.aux * (float_at(args.counts, 0, e) - even); };
  const float mean = sum_over_experts(experts, [&](std::int64_t e) { return share(e) * slope(e); });
  for (std::int64_t e = 0; e < experts; ++e)
    row[e] += (args.sigmoid ? sigmoid(-logits[e]) : 1.0f) * share(e) * (slope(e) - mean);
}

}  // namespace

void route(const RouteArgs& args, ExecContext&) {
  const std::int64_t experts = args.logits.cols, choices = args.experts.cols;
  const RowReader logits_of(args.logits, kLogits);
  const bool by_scores = args.biases.data != nullptr || args.groups > 1;
  float* const scores = scratch(kRow, experts);
  std::vector<std::uint8_t> taken(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < args.logits.rows; ++t) {
    const float* const logits = logits_of(t);
    for (std::int64_t e = 0; by_scores && e < experts; ++e)
      scores[e] = args.biases.data == nullptr ? sigmoid(logits[e]) : sigmoid(logits[e]) + float_at(args.biases, 0, e);
    std::fill(taken.begin(), taken.end(), std::uint8_t{0});
    if (args.groups > 1) close_groups(args, scores, taken.data());
    float sum = 0.0f, largest = 0.0f;
    for (std::int64_t k = 0; k < choices; ++k) {
      const std::int64_t best = take_largest(by_scores ? scores : logits, 0, experts, taken.data());
      number_at(args.experts, t, k) = static_cast<std::int32_t>(best);
      if (args.counts.data != nullptr) float_at(args.counts, 0, best) += 1.0f;
      if (k == 0) largest = logits[best];
      float& weight = float_at(args.weights, t, k);
      weight = args.sigmoid ? sigmoid(logits[best]) : exponential(logits[best] - largest);
      if (args.sigmoid) float_at(args.slopes, t, k) = sigmoid(-logits[best]);
      sum += weight;
    }
    for (std::int64_t k = 0; k < choices; ++k)
      float_at(args.weights, t, k) = float_at(args.weights, t, k) / sum * args.scale;
  }
}

void route_backward(const RouteBackwardArgs& args, ExecContext&) {
  const std::int64_t choices = args.experts.cols, experts = args.grad_logits.cols;
  const bool has_auxiliary_loss = args.logits.data != nullptr;
  float* const row = scratch(kRow, experts);
  float* const logits = scratch(kLogits, has_auxiliary_loss ? experts : 0);
  for (std::int64_t t = 0; t < args.experts.rows; ++t) {
    float mean = 0.0f;
    for (std::int64_t k = 0; k < choices; ++k) mean += float_at(args.weights, t, k) * float_at(args.grad_weights, t, k);
    mean /= args.scale;
    std::fill_n(row, experts, 0.0f);
    for (std::int64_t k = 0; k < choices; ++k) {
      const float slope = args.slopes.data == nullptr ? 1.0f : float_at(args.slopes, t, k);
      row[number_at(args.experts, t, k)] =
          slope * float_at(args.weights, t, k) * (float_at(args.grad_weights, t, k) - mean);
    }
    if (has_auxiliary_loss) {
      load(args.logits, t, 0, experts, logits);
      add_auxiliary_gradient(args, logits, row);
    }
    store(row, experts, args.grad_logits, t, 0);
  }
}

void balance_experts(const BalanceExpertsArgs& args, ExecContext&) {
  const std::int64_t experts = args.counts.cols;
  const auto count = [&](std::int64_t e) { return static_cast<std::int64_t>(float_at(args.counts, 0, e)); };
  std::int64_t all = 0;
  for (std::int64_t e = 0; e < experts; ++e) all += count(e);
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t above_mean = count(e) * experts - all;
    if (above_mean != 0) float_at(args.biases, 0, e) += above_mean < 0 ? args.rate : -args.rate;
    float_at(args.counts, 0, e) = 0.0f;
  }
}

void group_rows(const GroupRowsArgs& args, ExecContext&) {
  const std::int64_t experts = args.begins.rows - 1, choices = args.experts.cols;
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts) + 1);
  const auto expert_of = [&](std::int64_t t, std::int64_t k) {
    return static_cast<std::size_t>(number_at(args.experts, t, k));
  };
  for (std::int64_t t = 0; t < args.experts.rows; ++t)
    for (std::int64_t k = 0; k < choices; ++k) ++next[expert_of(t, k) + 1];
  for (std::size_t e = 1; e < next.size(); ++e)
    next[e] = next[e - 1] + (next[e] + args.multiple - 1) / args.multiple * args.multiple;
  for (std::int64_t e = 0; e <= experts; ++e)
    number_at(args.begins, e, 0) = static_cast<std::int32_t>(next[static_cast<std::size_t>(e)]);
  for (std::int64_t r = 0; r < args.sources.rows; ++r) number_at(args.sources, r, 0) = -1;
  for (std::int64_t t = 0; t < args.experts.rows; ++t)
    for (std::int64_t k = 0; k < choices; ++k) {
      const std::int64_t row = next[expert_of(t, k)]++;
      number_at(args.rows, t, k) = static_cast<std::int32_t>(row);
      number_at(args.sources, row, 0) = static_cast<std::int32_t>(t * choices + k);
    }
}

void permute(const PermuteArgs& args, ExecContext&) {
  const std::int64_t cols = args.out.cols;
  float* const row = scratch(kRow, cols);
  for (std::int64_t r = 0; r < args.out.rows; ++r) {
    const std::int32_t source = number_at(args.sources, r, 0);
    const std::int64_t token = source < 0 ? -1 : source / args.choices;
    if (args.weights.data == nullptr) {
      move_row(args.in, token, args.out, r);
      continue;
    }
    if (token < 0) {
      std::fill_n(row, cols, 0.0f);
    } else {
      load(args.in, token, 0, cols, row);
      const float weight = float_at(args.weights, token, source % args.choices);
      for (std::int64_t j = 0; j < cols; ++j) row[j] *= weight;
    }
    store(row, cols, args.out, r, 0);
  }
}

void unpermute(const UnpermuteArgs& args, ExecContext&) {
  const std::int64_t cols = args.out.cols;
  float* const row = scratch(kRow, cols);
  float* const sum = scratch(kSum, cols);
  for (std::int64_t t = 0; t < args.out.rows; ++t) {
    std::fill_n(sum, cols, 0.0f);
    for (std::int64_t k = 0; k < args.rows.cols; ++k) {
      load(args.in, number_at(args.rows, t, k), 0, cols, row);
      const float weight = args.weights.data == nullptr ? 1.0f : float_at(args.weights, t, k);
      for (std::int64_t j = 0; j < cols; ++j) sum[j] += weight * row[j];
    }
    store(sum, cols, args.out, t, 0);
  }
}

void unpermute_weights(const UnpermuteWeightsArgs& args, ExecContext&) {
  const std::int64_t cols = args.in.cols;
  const RowReader in(args.in, kRow), grad_out(args.grad_out, kSum);
  for (std::int64_t t = 0; t < args.grad_out.rows; ++t) {
    const float* const gradient = grad_out(t);
    for (std::int64_t k = 0; k < args.rows.cols; ++k) {
      const float* const row = in(number_at(args.rows, t, k));
      float_at(args.grad_weights, t, k) = row_sum(cols, [&](std::int64_t j) { return gradient[j] * row[j]; });
    }
  }
}

}  // namespace fp8lab::cpu
