#include "harness/measure/reference/step_bounds.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "harness/reference/casts.h"

namespace fp8lab {

using reference_step::Bounds;

Bounds StepBounds::with(double share, double rounding) const {
  return {
      .share = share, .step = in_f32_ ? reference_step::kF32Steps : reference_step::kBF16Steps, .rounding = rounding};
}

Bounds StepBounds::of_layer(std::size_t layer) const {
  const auto number = static_cast<std::int64_t>(layer);
  const TrainingConfig& training = cell_.training;
  const bool casts =
      quantized_ && number >= training.first_layers_bf16 && number < cell_.model.layers - training.last_layers_bf16;
  Bounds out = with(!casts                     ? reference_step::kIndependentShare
                    : is_language_model(cell_) ? reference_step::kRepeatedShare
                                               : reference_step::kNoiseShare);
  if (in_f32_) out.sums += largest_logit_ * std::ldexp(1.0, -reference_step::kF32.fraction);
  return out;
}

Bounds StepBounds::of_gradient(const std::string& name, double largest_term) const {
  Bounds out = of_gradient(name);
  out.rounding = step_at(largest_term);
  return out;
}

/// "layers[12].qkv.weight" has its layer's; a language model's embedding the bounds of the first layer, before which
/// it is, and what follows the layers has no eight bits.
Bounds StepBounds::of_gradient(const std::string& name) const {
  constexpr std::string_view kLayer = "layers[";
  if (name.starts_with(kLayer)) return of_layer(std::stoul(name.substr(kLayer.size())));
  if (name.starts_with("norm.") || name == "head.weight") return with(reference_step::kIndependentShare);
  return of_layer(0);
}

double StepBounds::step_at(double magnitude) const {
  const int fraction = in_f32_ ? reference_step::kF32.fraction : reference_step::kBF16.fraction;
  return magnitude > 0.0 ? std::ldexp(1.0, std::ilogb(magnitude) - fraction) : 0.0;
}

}  // namespace fp8lab
