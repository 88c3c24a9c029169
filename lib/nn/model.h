#pragma once

#include <functional>
#include <memory>
#include <span>
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
  bool eight_bit_weights = false;  ///< weights of matrix products are stored in the recipe's weight format
  /// Norms and activations cast or measure their results in the same kernel, where possible.
  bool fused_quantize = true;
  bool deferred_init = false;  ///< parameters get no storage: the sharding initialises each rank's shard
  /// Modules keep the eight-bit copies of unsharded weights in high precision, for all micro-batches of a step.
  bool cache_weights = false;
};

/// A chain of equal layers. Keeps a copy of its recipe.
class Model {
 public:
  Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options);

  Variable forward(Runtime& runtime, const Variable& x);
  const std::vector<Parameter*>& parameters() const { return registry_.parameters; }
  /// Parameters and scales, for checkpoints.
  const Registry& registry() const { return registry_; }

  /// Returns a module in place of `layer`. `parameters` are that layer's own.
  using Wrap = std::function<std::unique_ptr<Module>(std::unique_ptr<Module> layer, const std::string& name,
                                                     std::span<Parameter* const> parameters)>;
  /// Replaces each layer by the result of `wrap`.
  void wrap_layers(const Wrap& wrap);
  std::vector<std::string> layer_names() const;

  /// Compute the scales of the next pass from the amaxes that a pass recorded: after forward, and after backward. With
  /// a group this is a collective, and the amaxes are the largest over its ranks. Without one, ranks that see different
  /// data get different scales.
  void update_forward_scales(Runtime& runtime, ProcessGroup* amax_group = nullptr);
  void update_backward_scales(Runtime& runtime, ProcessGroup* amax_group = nullptr);

  /// Drops all gradients, those of shards included.
  void zero_grad();

 private:
  Recipe recipe_;
  Registry registry_;
  struct Layer {
    std::string name;
    std::unique_ptr<Module> module;
    std::size_t first_parameter = 0;  ///< index in the registry; its parameters end at the next layer's
  };
  std::vector<Layer> layers_;
};

}  // namespace fp8lab
