#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab {

/// A network of two fixed layers that makes targets of inputs: w2 relu(w1 x), plus x if the taught layers add to a
/// residual stream. A target follows from its own row of x only, so ranks, micro-batches and parts of a sequence that
/// divide rows have the same targets. Values are normally distributed, as drawn from the seed.
class Teacher {
 public:
  Teacher(std::uint64_t seed, std::int64_t hidden, bool residual);

  /// Targets of x, both [rows, hidden].
  std::vector<float> targets_of(const std::vector<float>& x) const;

 private:
  std::int64_t hidden_;
  bool residual_;
  std::vector<double> w1_;  ///< [kWidth, hidden]
  std::vector<double> w2_;  ///< [hidden, kWidth]
};

}  // namespace fp8lab
