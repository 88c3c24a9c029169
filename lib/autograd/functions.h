#pragma once

#include <string>

#include "autograd/node.h"
#include "ops/elementwise.h"

// Differentiable operations that belong to no module.
namespace fp8lab {

/// a + b; saves nothing.
Variable add(Runtime& runtime, std::string name, const Variable& a, const Variable& b);

/// Saves nothing: backward computes the mask again from its key.
Variable dropout(Runtime& runtime, std::string name, const Variable& x, const DropoutKey& key);

/// The sum of x as f32 [1, 1]. Saves only the shape of x, so it keeps no bytes.
Variable sum_loss(Runtime& runtime, const Variable& x);

/// The mean squared difference to `target` as f32 [1, 1]; saves x and target.
Variable mse_loss(Runtime& runtime, const Variable& x, const Tensor& target);

}  // namespace fp8lab
