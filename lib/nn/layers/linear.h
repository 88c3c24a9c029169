#pragma once

#include <string>

#include "nn/cores/linear_core.h"
#include "nn/module.h"

namespace fp8lab {

/// y = x W^T + b. Saves x (column-wise) and the quantized copy of W.
class Linear final : public Module {
 public:
  Linear(Build& build, const std::string& name, const LinearShape& shape) : core_(build, name, shape) {}
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  LinearCore core_;
};

}  // namespace fp8lab
