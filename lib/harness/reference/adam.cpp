#include "harness/reference/adam.h"

#include <algorithm>
#include <cmath>

#include "harness/reference/casts.h"

namespace fp8lab::reference_step {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

/// The factor that scales the norm over all gradients down to `most`; 1 without a limit.
double clip_factor(const NamedMatrices& gradients, double most) {
  if (most == 0.0) return 1.0;
  double squares = 0.0;
  for (const auto& [name, gradient] : gradients)
    for (const double value : gradient.values) squares += value * value;
  return std::min(1.0, most / (std::sqrt(squares) + 1e-6));
}

}  // namespace

NamedMatrices Adam::step(const NamedMatrices& parameters, const NamedMatrices& gradients) {
  ++steps_;
  const bool has_masters = training_.master_weights != Master::kNone;
  const double clip = clip_factor(gradients, training_.clip_norm), rate = training_.learning_rate;
  const double correction1 = 1.0 - std::pow(kBeta1, steps_), correction2 = 1.0 - std::pow(kBeta2, steps_);
  NamedMatrices out;
  for (const auto& [name, gradient] : gradients) {
    Matrix& m = exp_avg_.try_emplace(name, gradient.rows, gradient.cols).first->second;
    Matrix& v = exp_avg_sq_.try_emplace(name, gradient.rows, gradient.cols).first->second;
    Matrix p = has_masters ? masters_.try_emplace(name, parameters.at(name)).first->second : parameters.at(name);
    for (std::size_t i = 0; i < p.values.size(); ++i) {
      double& value = p.values[i];
      const double coupled = training_.decoupled_decay ? 0.0 : training_.weight_decay;
      const double decoupled = training_.decoupled_decay ? training_.weight_decay : 0.0;
      const double g = clip * gradient.values[i] + coupled * value;
      m.values[i] += (1.0 - kBeta1) * (g - m.values[i]);
      v.values[i] += (1.0 - kBeta2) * (g * g - v.values[i]);
      const double quotient = m.values[i] / correction1 / (std::sqrt(v.values[i] / correction2) + kEpsilon);
      value -= rate * (quotient + decoupled * value);
      if (has_masters) value = rounded(value, kF32);
    }
    if (has_masters) masters_[name] = p;
    out.emplace(name, std::move(p));
  }
  return out;
}

}  // namespace fp8lab::reference_step
