#include "optim/learning_rate.h"

#include <cmath>
#include <numbers>

namespace fp8lab {

double LearningRate::at(std::int64_t step) const {
  if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (!cosine) return rate;
  if (step >= decay_steps) return final_rate;
  const double way = static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  return final_rate + 0.5 * (1.0 + std::cos(std::numbers::pi * way)) * (rate - final_rate);
}

}  // namespace fp8lab
