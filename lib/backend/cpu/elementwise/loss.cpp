#include <algorithm>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/row_sum.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kX, kTarget };

/// Sum in double, so that the loss is as accurate as its FP32 result can be, over parts in the order of
/// core/sum_order.h. load_terms(first, count, terms) computes the terms of elements first ... first + count - 1.
template <class LoadTerms>
double sum_of(std::int64_t numel, const LoadTerms& load_terms) {
  const std::int64_t parts = (numel + kLossPart - 1) / kLossPart;
  std::vector<double> terms(static_cast<std::size_t>(std::min(numel, kLossPart)));
  std::vector<double> sums(static_cast<std::size_t>(parts));
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = part * kLossPart;
    const std::int64_t count = std::min(kLossPart, numel - first);
    load_terms(first, count, terms.data());
    sums[static_cast<std::size_t>(part)] =
        row_sum<double>(count, [&](std::int64_t j) { return terms[static_cast<std::size_t>(j)]; });
  }
  return row_sum<double>(parts, [&](std::int64_t j) { return sums[static_cast<std::size_t>(j)]; });
}

/// Visits elements first ... first + count - 1 of `shape` in row-major order: calls work(offset, row, col, count) for
/// each run of them within a row, `offset` counted from `first`.
template <class Work>
void for_each_run_of(const MatrixView& shape, std::int64_t first, std::int64_t count, const Work& work) {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t row = (first + done) / shape.cols, col = (first + done) % shape.cols;
    const std::int64_t run = std::min({kRun, shape.cols - col, count - done});
    work(done, row, col, run);
    done += run;
  }
}

}  // namespace

void sum_loss(const SumLossArgs& args, ExecContext&) {
  float* x = scratch(kX, kRun);
  const double sum = sum_of(args.x.numel(), [&](std::int64_t first, std::int64_t count, double* terms) {
    for_each_run_of(args.x, first, count, [&](std::int64_t at, std::int64_t row, std::int64_t col, std::int64_t run) {
      load(args.x, row, col, run, x);
      for (std::int64_t j = 0; j < run; ++j) terms[at + j] = double{x[j]};
    });
  });
  *args.loss.as<float>() = static_cast<float>(sum / args.divisor);
}

void mse_loss(const MseLossArgs& args, ExecContext&) {
  float* x = scratch(kX, kRun);
  float* target = scratch(kTarget, kRun);
  const double sum = sum_of(args.x.numel(), [&](std::int64_t first, std::int64_t count, double* terms) {
    for_each_run_of(args.x, first, count, [&](std::int64_t at, std::int64_t row, std::int64_t col, std::int64_t run) {
      load(args.x, row, col, run, x);
      load(args.target, row, col, run, target);
      for (std::int64_t j = 0; j < run; ++j) {
        const double difference = double{x[j]} - double{target[j]};
        terms[at + j] = difference * difference;
      }
    });
  });
  *args.loss.as<float>() = static_cast<float>(sum / static_cast<double>(args.x.numel()));
}

void mse_loss_backward(const MseLossBackwardArgs& args, ExecContext&) {
  MatrixView in = args.x;
  MatrixView goal = args.target;
  MatrixView grad = args.grad_x;
  flatten_if_contiguous(in, goal, grad);
  float* x = scratch(kX, kRun);
  float* target = scratch(kTarget, kRun);
  const double grad_loss = *args.grad_loss.as<const float>();
  const float factor = static_cast<float>(2.0 * grad_loss / static_cast<double>(args.x.numel()));
  for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, x);
    load(goal, row, col, count, target);
    for (std::int64_t j = 0; j < count; ++j) x[j] = (x[j] - target[j]) * factor;
    store(x, count, grad, row, col);
  });
}

}  // namespace fp8lab::cpu
