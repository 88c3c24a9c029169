#pragma once

#include <cstdint>

namespace fp8lab {

/// The learning rate as a function of only the step, so that resumed training continues with it. In the first
/// `warmup_steps` steps it rises by equal amounts to `rate`, which the step after them has. Then it stays, or falls by
/// half a period of a cosine to `final_rate` at step `decay_steps` and after it.
struct LearningRate {
  double rate = 1e-4;
  std::int64_t warmup_steps = 0;
  bool cosine = false;
  double final_rate = 0.0;
  std::int64_t decay_steps = 0;  ///< at least warmup_steps

  /// `step` is counted from 0.
  double at(std::int64_t step) const;
};

}  // namespace fp8lab
