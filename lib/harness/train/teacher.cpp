#include "harness/train/teacher.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/counter_rng.h"
#include "nn/build.h"

namespace fp8lab {
namespace {

/// Few, so that gradients of all rows agree and the loss falls in a few steps.
constexpr std::int64_t kWidth = 8;
/// Deviation of w2, which gives the targets a mean square of about 1.
constexpr double kDeviation = 0.5;

std::vector<double> drawn(std::uint64_t seed, std::string_view name, std::int64_t count, double deviation) {
  const CounterRng rng(seed, stream_of(name));
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(deviation * static_cast<double>(rng.normal(static_cast<std::uint64_t>(i))));
  return out;
}

}  // namespace

Teacher::Teacher(std::uint64_t seed, std::int64_t hidden, bool residual)
    : hidden_(hidden),
      residual_(residual),
      w1_(drawn(seed, "teacher w1", kWidth * hidden, 1.0 / std::sqrt(static_cast<double>(hidden)))),
      w2_(drawn(seed, "teacher w2", hidden * kWidth, kDeviation)) {}

std::vector<float> Teacher::targets_of(const std::vector<float>& x) const {
  std::vector<float> out(x.size());
  for (std::int64_t row = 0; row < std::ssize(x) / hidden_; ++row) {
    const float* const in = x.data() + row * hidden_;
    std::array<double, kWidth> inner{};
    for (std::int64_t k = 0; k < kWidth; ++k) {
      double& sum = inner[static_cast<std::size_t>(k)];
      for (std::int64_t i = 0; i < hidden_; ++i)
        sum += w1_[static_cast<std::size_t>(k * hidden_ + i)] * static_cast<double>(in[i]);
      sum = std::max(sum, 0.0);
    }
    for (std::int64_t j = 0; j < hidden_; ++j) {
      double sum = residual_ ? static_cast<double>(in[j]) : 0.0;
      for (std::int64_t k = 0; k < kWidth; ++k)
        sum += w2_[static_cast<std::size_t>(j * kWidth + k)] * inner[static_cast<std::size_t>(k)];
      out[static_cast<std::size_t>(row * hidden_ + j)] = static_cast<float>(sum);
    }
  }
  return out;
}

}  // namespace fp8lab
