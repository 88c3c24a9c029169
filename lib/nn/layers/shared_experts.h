#pragma once

#include <string>

#include "nn/cores/activation_core.h"
#include "nn/cores/linear_core.h"
#include "nn/cores/saving.h"
#include "nn/layer_config.h"

namespace fp8lab {

/// The experts of a mixture that every token has, as one MLP of their joint width: W2 act(W1 n) for the output n of the
/// mixture's norm. Several experts that all tokens have are one MLP: their rows of W1, and their columns of W2, lie one
/// after the other. No rank sends tokens for them: FSDP shards their weights over all ranks.
class SharedExperts {
 public:
  /// `name`: the mixture's.
  SharedExperts(Build& build, const std::string& name, const LayerConfig& config);

  struct Forward {
    LinearCore::Forward fc1, fc2;
  };
  Forward forward(Runtime& runtime, const Tensor& n);
  static constexpr std::size_t kEntries = 5;  ///< that save() makes
  static void save(ModuleNode& node, Forward forward);
  /// Returns the gradient of n; accumulates the gradients of the weights. `first`: the first of the saved entries.
  Tensor backward(Runtime& runtime, const Tensor& grad, Restored& saved, std::size_t first);

 private:
  ActivationCore activation_;
  LinearCore fc1_;
  LinearCore fc2_;
};

}  // namespace fp8lab
