#pragma once

#include <string>
#include <utility>

#include "nn/cores/operand.h"
#include "ops/activation.h"

namespace fp8lab {

/// GELU or SwiGLU. The module saves the input for backward.
class ActivationCore {
 public:
  ActivationCore(std::string name, const Activation& activation) : name_(std::move(name)), activation_(activation) {}

  Operand forward(Runtime& runtime, const Tensor& x, const OperandRequest& request) const;
  /// Returns the gradient of x, with its amax if `measure`.
  Operand backward(Runtime& runtime, const Tensor& grad_y, const Tensor& x, bool measure) const;

 private:
  std::string name_;
  Activation activation_;
};

}  // namespace fp8lab
