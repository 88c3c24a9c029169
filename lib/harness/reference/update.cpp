#include "harness/reference/update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/counter_rng.h"
#include "core/fnv1a.h"
#include "harness/reference/casts.h"

namespace fp8lab::reference_step {
namespace {

constexpr double kEpsilon = 1e-8;

/// The factor that scales the norm over all gradients down to `most`; 1 without a limit.
double clip_factor(const NamedMatrices& gradients, double most) {
  if (most == 0.0) return 1.0;
  double squares = 0.0;
  for (const auto& [name, gradient] : gradients)
    for (const double value : gradient.values) squares += value * value;
  return std::min(1.0, most / (std::sqrt(squares) + 1e-6));
}

/// A moment as the next step reads it. Under a scale, elements are quotients of floats.
Matrix stored_moment(Matrix moment, Moments type) {
  if (type == Moments::kF32) return moment;
  double scale = 1.0;
  if (type != Moments::kBF16) {
    double absmax = 0.0;
    for (const double value : moment.values) absmax = std::max(absmax, std::abs(value));
    const double limit = type == Moments::kF16 ? kF16.largest / 2.0 : kE4M3.largest;
    if (absmax > 0.0) scale = static_cast<double>(static_cast<float>(absmax) / static_cast<float>(limit));
  }
  const Format& format = type == Moments::kBF16 ? kBF16 : type == Moments::kF16 ? kF16 : kE4M3;
  for (double& value : moment.values)
    value = rounded(static_cast<double>(static_cast<float>(value) / static_cast<float>(scale)), format) * scale;
  return moment;
}

/// from + weight (to - from), every operation rounded to float. Quotients of such moments by their scale are ratios of
/// short numbers in the first step, and so often half-way between two numbers of eight bits that a rounding of double
/// in place of float decides for one value in a hundred.
double as_floats(double from, double to, double weight) {
  const auto f = [](double value) { return static_cast<float>(value); };
  if (weight < 0.5) return f(f(from) + f(f(weight) * f(f(to) - f(from))));
  return f(f(to) + f(f(weight - 1.0) * f(f(to) - f(from))));
}

}  // namespace

/// Rate of the present step, whose number is steps_, from 1.
double Update::learning_rate() const {
  const TrainingConfig& t = training_;
  const double number = steps_, warmup = static_cast<double>(t.warmup_steps);
  if (number <= warmup) return t.learning_rate * number / (warmup + 1.0);
  if (t.learning_rate_schedule == RateSchedule::kConstant) return t.learning_rate;
  const double end = static_cast<double>(t.decay_steps == 0 ? t.steps : t.decay_steps);
  const double part = std::clamp((number - 1.0 - warmup) / std::max(end - warmup, 1.0), 0.0, 1.0);
  const double half = std::acos(-1.0) / 2.0;
  return t.final_learning_rate + (t.learning_rate - t.final_learning_rate) * std::pow(std::cos(half * part), 2.0);
}

NamedMatrices Update::step(const NamedMatrices& parameters, const NamedMatrices& gradients,
                           const std::set<std::string>& vectors) {
  ++steps_;
  const bool has_masters = training_.master_weights != Master::kNone;
  const double clip = clip_factor(gradients, training_.clip_norm), rate = learning_rate();
  const double beta1 = training_.beta1, beta2 = training_.beta2;
  const double correction1 = 1.0 - std::pow(beta1, steps_), correction2 = 1.0 - std::pow(beta2, steps_);
  const Format& of_parameters = training_.param_dtype == ParamDType::kF32 ? kF32 : kBF16;
  NamedMatrices out;
  for (const auto& [name, gradient] : gradients) {
    const bool decays = !vectors.contains(name) || !training_.decay_only_matrices;
    const double decay = decays ? training_.weight_decay : 0.0;
    if (training_.optimizer == Optimizer::kSgd) {
      Matrix p = parameters.at(name);
      for (std::size_t i = 0; i < p.values.size(); ++i)
        p.values[i] -= rate * (gradient.values[i] + decay * p.values[i]);
      out.emplace(name, std::move(p));
      continue;
    }
    Matrix& m = exp_avg_.try_emplace(name, gradient.rows, gradient.cols).first->second;
    Matrix& v = exp_avg_sq_.try_emplace(name, gradient.rows, gradient.cols).first->second;
    Matrix p = has_masters ? masters_.try_emplace(name, parameters.at(name)).first->second : parameters.at(name);
    for (std::size_t i = 0; i < p.values.size(); ++i) {
      double& value = p.values[i];
      const double coupled = training_.decoupled_decay ? 0.0 : decay;
      double decoupled = training_.decoupled_decay ? decay : 0.0;
      const double g = clip * gradient.values[i] + coupled * value;
      if (training_.moments == Moments::kF32) {
        m.values[i] += (1.0 - beta1) * (g - m.values[i]);
        v.values[i] += (1.0 - beta2) * (g * g - v.values[i]);
      } else {
        m.values[i] = as_floats(m.values[i], g, 1.0 - beta1);
        v.values[i] = as_floats(v.values[i], g * g, 1.0 - beta2);
      }
      // List-wise Adam decays a parameter by an operation of its own: a factor in FP32, and a result of the parameter's
      // type.
      if (training_.optimizer == Optimizer::kForeachAdam)
        value = rounded(value * rounded(1.0 - rate * std::exchange(decoupled, 0.0), kF32), of_parameters);
      const double quotient = m.values[i] / correction1 / (std::sqrt(v.values[i] / correction2) + kEpsilon);
      value -= rate * (quotient + decoupled * value);
      if (has_masters) value = rounded(value, kF32);
    }
    m = stored_moment(std::move(m), training_.moments);
    v = stored_moment(std::move(v), training_.moments);
    if (has_masters) masters_[name] = p;
    out.emplace(name, std::move(p));
  }
  return out;
}

Matrix Update::rounded_at_random(const std::string& name, Matrix values) const {
  const CounterRng rng(training_.seed, fnv1a("rounding of " + name) + static_cast<std::uint64_t>(steps_));
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double value = rounded(values.values[i], kF32), magnitude = std::abs(value);
    const double quantum = std::ldexp(
        1.0, std::max(magnitude > 0.0 ? std::ilogb(magnitude) : kBF16.lowest, kBF16.lowest) - kBF16.fraction);
    const double below = std::floor(magnitude / quantum), cut_off = magnitude / quantum - below;
    const double drawn = static_cast<double>(rng.bits(i) >> 16) * 0x1p-16;
    // Up if the fraction and the draw add up to a step.
    const double kept = (below + (cut_off + drawn >= 1.0 ? 1.0 : 0.0)) * quantum;
    values.values[i] = std::copysign(std::min(kept, kBF16.largest), value);
  }
  return values;
}

}  // namespace fp8lab::reference_step
