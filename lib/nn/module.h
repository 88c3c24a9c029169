#pragma once

#include "autograd/node.h"

namespace fp8lab {

/// A layer or a part of one. Its parameters and scales are listed in the registry that it was built with.
class Module {
 public:
  virtual ~Module() = default;
  /// `x.value` is [seq * batch, features].
  virtual Variable forward(Runtime& runtime, const Variable& x) = 0;
};

}  // namespace fp8lab
