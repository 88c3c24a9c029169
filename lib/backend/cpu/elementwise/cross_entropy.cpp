#include <algorithm>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/row_sum.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"
#include "core/elementary.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kX, kTerms };

constexpr std::int64_t kRuns = kSumLanes / kSumRun;

float* at_row(const MatrixView& column, std::int64_t row) { return column.as<float>() + row * column.row_stride; }
std::int64_t target_at(const MatrixView& targets, std::int64_t row) {
  return targets.as<const std::int32_t>()[row * targets.row_stride];
}

/// The partial sums of a row, in the order of core/sum_order.h.
class RowOfExponentials {
 public:
  RowOfExponentials() {
    std::fill_n(partials_, kSumLanes, 0.0f);
    std::fill_n(maxima_, kRuns, kLowestFloat);
  }

  /// Adds a term to each partial sum of the first `runs` runs. `x` is overwritten.
  void add(float* x, std::int64_t runs) {
    vectorized([x, runs, partials = &partials_[0], maxima = &maxima_[0]] {
      alignas(64) float factors[kRuns];
      for (std::int64_t run = 0; run < runs; ++run) {
        float maximum = maxima[run];
        for (int j = 0; j < kSumRun; ++j) maximum = fp8lab::detail::at_least(x[run * kSumRun + j], maximum);
        factors[run] = exponential(maxima[run] - maximum);
        maxima[run] = maximum;
      }
      for (std::int64_t run = 0; run < runs; ++run)
        for (int j = 0; j < kSumRun; ++j) {
          x[run * kSumRun + j] -= maxima[run];
          partials[run * kSumRun + j] *= factors[run];
        }
      for (std::int64_t partial = 0; partial < runs * kSumRun; ++partial)
        partials[partial] += exponential_term(x[partial]);
    });
  }

  /// The sum over the row, whose terms reached the first `runs` runs.
  ExponentialSum total(std::int64_t runs) {
    detail::join_runs(partials_, runs);
    ExponentialSum sums[kRuns];
    for (std::int64_t run = 0; run < runs; ++run) sums[run] = {.maximum = maxima_[run], .sum = partials_[run]};
    for (; runs > 1; runs = (runs + 1) / 2) {
      for (std::int64_t pair = 0; pair < runs / 2; ++pair) sums[pair] = joined(sums[2 * pair], sums[2 * pair + 1]);
      if (runs % 2 != 0) sums[runs / 2] = sums[runs - 1];
    }
    return sums[0];
  }

 private:
  alignas(64) float partials_[kSumLanes];
  float maxima_[kRuns];
};

ExponentialSum sum_of_row(const MatrixView& logits, std::int64_t row) {
  float* x = scratch(kX, kSumLanes);
  RowOfExponentials sums;
  for (std::int64_t col = 0; col < logits.cols; col += kSumLanes) {
    const std::int64_t count = std::min<std::int64_t>(kSumLanes, logits.cols - col);
    const std::int64_t runs = (count + kSumRun - 1) / kSumRun;
    load(logits, row, col, count, x);
    std::fill(x + count, x + runs * kSumRun, -std::numeric_limits<float>::infinity());
    sums.add(x, runs);
  }
  return sums.total((std::min<std::int64_t>(kSumLanes, logits.cols) + kSumRun - 1) / kSumRun);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForwardArgs& args, ExecContext&) {
  for (std::int64_t i = 0; i < args.logits.rows; ++i) {
    const ExponentialSum sum = sum_of_row(args.logits, i);
    float target;
    load(args.logits, i, target_at(args.targets, i), 1, &target);
    *at_row(args.losses, i) = sum.loss_of(target);
    *at_row(args.log_sums, i) = sum.log_sum();
  }
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, ExecContext&) {
  float* x = scratch(kX, kRun);
  float* terms = scratch(kTerms, kRun);
  const double grad_loss = *args.grad_loss.as<const float>();
  const float factor = static_cast<float>(grad_loss / static_cast<double>(args.logits.rows));
  for_each_run(args.logits, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    const float log_sum = *at_row(args.log_sums, row);
    const std::int64_t target = target_at(args.targets, row) - col;
    load(args.logits, row, col, count, x);
    vectorized([=] {
      for (std::int64_t j = 0; j < count; ++j) terms[j] = exponential(x[j] - log_sum);
    });
    if (target >= 0 && target < count) terms[target] -= 1.0f;
    for (std::int64_t j = 0; j < count; ++j) terms[j] *= factor;
    store(terms, count, args.grad_logits, row, col);
  });
}

}  // namespace fp8lab::cpu
