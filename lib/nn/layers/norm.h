#pragma once

#include <string>

#include "nn/cores/norm_core.h"
#include "nn/module.h"

namespace fp8lab {

/// y = norm(x) as a node of its own, in the type of x under every recipe: no product of this layer reads y. Saves x and
/// the row statistics.
class Norm final : public Module {
 public:
  /// `bias`: a LayerNorm has a beta.
  Norm(Build& build, const std::string& name, NormKind kind, std::int64_t columns, bool bias)
      : name_(name), core_(build, name, kind, columns, bias) {}
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  std::string name_;
  NormCore core_;
};

}  // namespace fp8lab
