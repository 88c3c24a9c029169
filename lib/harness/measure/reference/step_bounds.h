#pragma once

#include <algorithm>
#include <string>

#include "harness/cell/cell.h"
#include "harness/reference/compare.h"

namespace fp8lab {

/// The bounds of the tensors of a cell's step around the reference step's.
class StepBounds {
 public:
  /// `quantized`: the arm's recipe casts to eight bits. `cell` must outlive this.
  StepBounds(const CellConfig& cell, bool quantized)
      : cell_(cell), quantized_(quantized), in_f32_(cell.training.param_dtype == ParamDType::kF32) {}

  /// Step::largest_logit of a rank.
  void saw_logit(double largest) { largest_logit_ = std::max(largest_logit_, largest); }
  reference_step::Bounds with(double share, double rounding = 0.0) const;
  /// Bounds of what comes out of a layer, forward or backward.
  reference_step::Bounds of_layer(std::size_t layer) const;
  /// A sum over tokens may be far smaller than its largest term, of which one rounding may fall to the other side.
  reference_step::Bounds of_gradient(const std::string& name, double largest_term) const;
  /// The step of the type that tensors are stored in, at this magnitude.
  double step_at(double magnitude) const;
  bool in_f32() const { return in_f32_; }

 private:
  reference_step::Bounds of_gradient(const std::string& name) const;

  const CellConfig& cell_;
  bool quantized_;
  bool in_f32_;
  double largest_logit_ = 0.0;
};

}  // namespace fp8lab
