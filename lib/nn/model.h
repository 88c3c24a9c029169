#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nn/build.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

struct ModelOptions {
  std::string_view layer = "transformer_layer";  ///< a row of the layer table
  std::int64_t layers = 1;
  LayerConfig config;
  DType dtype = DType::kBF16;
  bool checkpoint_layers = false;  ///< every layer is a checkpointed region
};

/// A chain of equal layers. Keeps the recipe it was built with.
class Model {
 public:
  Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options);

  Variable forward(Runtime& runtime, const Variable& x);
  const std::vector<Parameter*>& parameters() const { return registry_.parameters; }

  /// Scales of the next step from the amaxes that a pass recorded: after forward, and after backward.
  void update_forward_scales(Runtime& runtime);
  void update_backward_scales(Runtime& runtime);

  /// Drops every gradient.
  void zero_grad();

 private:
  Recipe recipe_;
  bool checkpoint_layers_;
  Registry registry_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Module>> layers_;
};

}  // namespace fp8lab
