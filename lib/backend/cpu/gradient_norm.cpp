#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {

void square_sum(const SquareSumArgs& args, ExecContext&) {
  constexpr int kLanes = 8;  // sums that do not wait for each other; a fixed number, so that the order is fixed
  double total = 0.0;
  float* values = scratch(0, kRun);
  for (MatrixView tensor : args.tensors) {
    flatten_if_contiguous(tensor);
    for_each_run(tensor, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      load(tensor, row, col, count, values);
      double lanes[kLanes] = {};
      std::int64_t j = 0;
      for (; j + kLanes <= count; j += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) {
          const double x = static_cast<double>(values[j + lane]);
          lanes[lane] += x * x;
        }
      for (int lane = 0; j < count; ++j, ++lane) {
        const double x = static_cast<double>(values[j]);
        lanes[lane] += x * x;
      }
      for (const double lane : lanes) total += lane;
    });
  }
  *args.sum = static_cast<float>(total);
}

void clip_coefficient(const ClipCoefficientArgs& args, ExecContext&) {
  const float norm = std::sqrt(*args.square_sum);
  const float quotient = args.max_norm / (norm + 1e-6f);
  *args.norm = norm;
  *args.coefficient = quotient >= 1.0f ? 1.0f : quotient;
}

}  // namespace fp8lab::cpu
