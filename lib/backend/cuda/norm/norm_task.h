#pragma once

#include <cstdint>

#include "backend/kernels.h"

namespace fp8lab::cuda {

/// The arguments of a norm's kernels, without the destination of y.
struct NormTask {
  MatrixView x;
  MatrixView gamma;
  MatrixView beta;
  float* mean;
  std::int64_t mean_stride;
  float* rstd;
  std::int64_t rstd_stride;
  std::int64_t rows;
  std::int64_t cols;
  float epsilon;
};

inline NormTask norm_task(const NormForwardArgs& args) {
  return {.x = args.x,
          .gamma = args.gamma,
          .beta = args.beta,
          .mean = args.mean.as<float>(),
          .mean_stride = args.mean.row_stride,
          .rstd = args.rstd.as<float>(),
          .rstd_stride = args.rstd.row_stride,
          .rows = args.x.rows,
          .cols = args.x.cols,
          .epsilon = args.epsilon};
}

}  // namespace fp8lab::cuda
