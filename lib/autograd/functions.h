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

/// The mean cross-entropy of [tokens, vocabulary] logits and their targets, i32 [tokens], as f32 [1, 1]. Saves the
/// logits in their own type, the targets and an f32 for each token. Backward overwrites the logits with their gradient:
/// logits are a language model's largest tensor, and nothing else of them is ever stored (PyTorch makes FP32 copies of
/// them, of their log-probabilities and of both gradients). So nothing may read the logits after backward.
Variable cross_entropy(Runtime& runtime, const Variable& logits, const Tensor& targets);

}  // namespace fp8lab
