#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {

namespace {

/// Partial sums in the order of SquareSumArgs: each added number goes to the next lane.
class Lanes {
 public:
  void add(double term) {
    sums_[next_] += term;
    next_ = (next_ + 1) % kSquareSumLanes;
  }
  /// Adds squares; `count` must not exceed left().
  void add_squares(const float* values, std::int64_t count) {
    double* sums = sums_.data() + next_;
    for (std::int64_t j = 0; j < count; ++j) {
      const double x = static_cast<double>(values[j]);
      sums[j] += x * x;
    }
    next_ = (next_ + static_cast<std::size_t>(count)) % kSquareSumLanes;
  }
  std::int64_t left() const { return kSquareSumLanes - static_cast<std::int64_t>(next_); }
  /// Returns the sum over all lanes and clears them.
  double take() {
    for (std::size_t width = kSquareSumLanes / 2; width > 0; width /= 2)
      for (std::size_t lane = 0; lane < width; ++lane) sums_[lane] = sums_[2 * lane] + sums_[2 * lane + 1];
    const double sum = sums_[0];
    sums_.fill(0.0);
    next_ = 0;
    return sum;
  }

 private:
  std::array<double, kSquareSumLanes> sums_{};
  std::size_t next_ = 0;
};

}  // namespace

void square_sum(const SquareSumArgs& args, ExecContext&) {
  Lanes of_list, of_stretch;
  float* values = scratch(0, kRun);
  for (MatrixView tensor : args.tensors) {
    flatten_if_contiguous(tensor);
    std::int64_t taken = 0;  // elements of the current stretch so far
    for_each_run(tensor, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      load(tensor, row, col, count, values);
      for (std::int64_t j = 0; j < count;) {
        const std::int64_t next = std::min(count - j, of_stretch.left());
        of_stretch.add_squares(values + j, next);
        j += next;
        taken += next;
        if (taken < kSquareSumStretch) continue;
        of_list.add(of_stretch.take());
        taken = 0;
      }
    });
    if (taken > 0) of_list.add(of_stretch.take());
  }
  *args.sum = static_cast<float>(of_list.take());
}

void clip_coefficient(const ClipCoefficientArgs& args, ExecContext&) {
  const float norm = std::sqrt(*args.square_sum);
  const float quotient = args.max_norm / (norm + 1e-6f);
  *args.norm = norm;
  *args.coefficient = quotient >= 1.0f ? 1.0f : quotient;
}

}  // namespace fp8lab::cpu
