#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kX, kTarget };

/// Sums in double, in order, so that the loss is as exact as its FP32 result can be.
template <class Term>
double sum_of(const MatrixView& x, const Term& run_sum) {
  double sum = 0.0;
  for_each_run(x, [&](std::int64_t row, std::int64_t col, std::int64_t count) { sum += run_sum(row, col, count); });
  return sum;
}

}  // namespace

void sum_loss(const SumLossArgs& args, ExecContext&) {
  float* x = scratch(kX, kRun);
  const double sum = sum_of(args.x, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(args.x, row, col, count, x);
    double part = 0.0;
    for (std::int64_t j = 0; j < count; ++j) part += double{x[j]};
    return part;
  });
  *args.loss.as<float>() = static_cast<float>(sum);
}

void mse_loss(const MseLossArgs& args, ExecContext&) {
  float* x = scratch(kX, kRun);
  float* target = scratch(kTarget, kRun);
  const double sum = sum_of(args.x, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(args.x, row, col, count, x);
    load(args.target, row, col, count, target);
    double part = 0.0;
    for (std::int64_t j = 0; j < count; ++j) {
      const double difference = double{x[j]} - double{target[j]};
      part += difference * difference;
    }
    return part;
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
