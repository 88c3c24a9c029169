#include <cmath>

#include "backend/cpu/column_sums.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/quantize/quantize_source.h"
#include "backend/cpu/row_sum.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"

namespace fp8lab::cpu {
namespace {

// ColumnSums use three slots each.
enum Slot { kX, kGamma, kBeta, kGradY, kOut, kGradGamma, kGradBeta = kGradGamma + 3 };

float* at_row(const MatrixView& statistics, std::int64_t row) {
  return statistics.as<float>() + row * statistics.row_stride;
}

}  // namespace

void norm_forward(const NormForwardArgs& args, ExecContext&) {
  const std::int64_t cols = args.x.cols;
  const bool centred = args.kind == NormKind::kLayerNorm;
  const RowReader x_rows(args.x, kX);
  const float* gamma = RowReader(args.gamma, kGamma)(0);
  const float* beta = args.beta.data != nullptr ? RowReader(args.beta, kBeta)(0) : nullptr;
  float* y = scratch(kOut, cols);

  for (std::int64_t i = 0; i < args.x.rows; ++i) {
    const float* x = x_rows(i);
    const float count = static_cast<float>(cols);
    const float mean = centred ? row_sum(cols, [&](std::int64_t j) { return x[j]; }) / count : 0.0f;
    const float variance = row_sum(cols, [&](std::int64_t j) { return (x[j] - mean) * (x[j] - mean); }) / count;
    const float rstd = 1.0f / std::sqrt(variance + args.epsilon);
    vectorized([=] {
      for (std::int64_t j = 0; j < cols; ++j) y[j] = (x[j] - mean) * rstd * gamma[j];
      if (beta != nullptr)
        for (std::int64_t j = 0; j < cols; ++j) y[j] += beta[j];
    });
    store(y, cols, args.y, i, 0);
    if (centred) *at_row(args.mean, i) = mean;
    *at_row(args.rstd, i) = rstd;
  }
  measure(args.y, args.amax);
}

// With xhat = (x - mean) * rstd and g = grad_y * gamma:
//   grad_x = rstd * (g - [mean of g over the row, LayerNorm only] - xhat * mean of g * xhat over the row)
void norm_backward(const NormBackwardArgs& args, ExecContext&) {
  const std::int64_t cols = args.x.cols;
  const bool centred = args.kind == NormKind::kLayerNorm;
  const RowReader x_rows(args.x, kX);
  const RowReader grad_rows(args.grad_y, kGradY);
  const float* gamma = RowReader(args.gamma, kGamma)(0);
  float* grad_x = scratch(kOut, cols);
  ColumnSums gamma_sums(args.x.rows, cols, kGradGamma);
  ColumnSums beta_sums(args.x.rows, cols, kGradBeta);

  for (std::int64_t i = 0; i < args.x.rows; ++i, gamma_sums.end_row(), beta_sums.end_row()) {
    float* grad_gamma = gamma_sums.part();
    float* grad_beta = beta_sums.part();
    const float* x = x_rows(i);
    const float* grad_y = grad_rows(i);
    const float count = static_cast<float>(cols);
    const float mean = centred ? *at_row(args.mean, i) : 0.0f;
    const float rstd = *at_row(args.rstd, i);
    const float offset = centred ? row_sum(cols, [&](std::int64_t j) { return grad_y[j] * gamma[j]; }) / count : 0.0f;
    const float slope =
        row_sum(cols, [&](std::int64_t j) { return grad_y[j] * gamma[j] * ((x[j] - mean) * rstd); }) / count;
    vectorized([=] {
      for (std::int64_t j = 0; j < cols; ++j) {
        const float xhat = (x[j] - mean) * rstd;
        grad_x[j] = rstd * (grad_y[j] * gamma[j] - offset - xhat * slope);
        grad_gamma[j] += grad_y[j] * xhat;
      }
      if (centred)
        for (std::int64_t j = 0; j < cols; ++j) grad_beta[j] += grad_y[j];
    });
    store(grad_x, cols, args.grad_x, i, 0);
  }
  store(gamma_sums.total(), cols, args.grad_gamma, 0, 0);
  if (args.grad_beta.data != nullptr) store(beta_sums.total(), cols, args.grad_beta, 0, 0);
}

}  // namespace fp8lab::cpu
