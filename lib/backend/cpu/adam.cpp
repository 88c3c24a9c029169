#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kParam, kGrad, kExpAvg, kExpAvgSq };

void step(const AdamArgs& args, const AdamTensor& tensor) {
  MatrixView param = tensor.param;
  MatrixView grad = tensor.grad;
  MatrixView exp_avg = tensor.exp_avg;
  MatrixView exp_avg_sq = tensor.exp_avg_sq;
  // The FP32 copy is what is optimised where there is one; the parameter is then its rounding.
  const bool has_master = tensor.master.data != nullptr;
  MatrixView source = has_master ? tensor.master : param;
  flatten_if_contiguous(param, grad, exp_avg, exp_avg_sq, source);

  const float rest1 = 1.0f - args.beta1;
  const float rest2 = 1.0f - args.beta2;
  const float coupled_decay = args.decoupled_decay ? 0.0f : args.weight_decay;
  const float decoupled_decay = args.decoupled_decay ? args.weight_decay : 0.0f;
  float* p = scratch(kParam, kRun);
  float* g = scratch(kGrad, kRun);
  float* m = scratch(kExpAvg, kRun);
  float* v = scratch(kExpAvgSq, kRun);
  for_each_run(param, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(source, row, col, count, p);
    load(grad, row, col, count, g);
    load(exp_avg, row, col, count, m);
    load(exp_avg_sq, row, col, count, v);
    for (std::int64_t j = 0; j < count; ++j) {
      const float gradient = g[j] + coupled_decay * p[j];
      m[j] = args.beta1 * m[j] + rest1 * gradient;
      v[j] = args.beta2 * v[j] + rest2 * (gradient * gradient);
      const float mean = m[j] / args.bias_correction1;
      const float deviation = std::sqrt(v[j] / args.bias_correction2);
      p[j] = p[j] - args.learning_rate * (mean / (deviation + args.epsilon) + decoupled_decay * p[j]);
    }
    store(m, count, exp_avg, row, col);
    store(v, count, exp_avg_sq, row, col);
    if (has_master) store(p, count, source, row, col);
    store(p, count, param, row, col);
  });
}

}  // namespace

void adam(const AdamArgs& args, ExecContext&) {
  for (const AdamTensor& tensor : args.tensors) step(args, tensor);
}

}  // namespace fp8lab::cpu
