#include "nn/model.h"

#include <fmt/core.h>

#include <utility>

#include "autograd/activation_checkpoint.h"
#include "nn/cores/role_scales.h"
#include "nn/layer_table.h"

namespace fp8lab {
namespace {

/// A layer that runs as a checkpointed region.
class CheckpointedLayer final : public Module {
 public:
  CheckpointedLayer(std::string name, std::unique_ptr<Module> layer)
      : name_(std::move(name)), layer_(std::move(layer)) {}
  Variable forward(Runtime& runtime, const Variable& x) override {
    if (runtime.mode == Runtime::Mode::kEvaluating) return layer_->forward(runtime, x);
    return checkpoint(runtime, name_, [this, &runtime](const Variable& in) { return layer_->forward(runtime, in); }, x);
  }

 private:
  std::string name_;
  std::unique_ptr<Module> layer_;
};

}  // namespace

Model::Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options) : recipe_(recipe) {
  Build build{.runtime = runtime,
              .recipe = recipe_,
              .registry = registry_,
              .dtype = options.dtype,
              .eight_bit_weights = options.eight_bit_weights,
              .fused_quantize = options.fused_quantize,
              .deferred_init = options.deferred_init,
              .cache_weights = options.cache_weights};
  const LayerRow& row = layer_row(options.layer);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::size_t first_parameter = registry_.parameters.size();
    const std::string name = fmt::format("layers[{}]", i);
    std::unique_ptr<Module> layer = row.make(build, name, options.config);
    if (options.checkpoint_layers) layer = std::make_unique<CheckpointedLayer>(name, std::move(layer));
    layers_.push_back({name, std::move(layer), first_parameter});
  }
}

std::vector<std::string> Model::layer_names() const {
  std::vector<std::string> names;
  for (const Layer& layer : layers_) names.push_back(layer.name);
  return names;
}

void Model::wrap_layers(const Wrap& wrap) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::size_t end = i + 1 < layers_.size() ? layers_[i + 1].first_parameter : registry_.parameters.size();
    const std::span<Parameter* const> own =
        std::span(registry_.parameters).subspan(layer.first_parameter, end - layer.first_parameter);
    layer.module = wrap(std::move(layer.module), layer.name, own);
  }
}

Variable Model::forward(Runtime& runtime, const Variable& x) {
  Variable value = x;
  for (const Layer& layer : layers_) value = layer.module->forward(runtime, value);
  return value;
}

void Model::update_forward_scales(Runtime& runtime, ProcessGroup* amax_group) {
  update_scales(runtime, registry_.forward_scales, amax_group);
}

void Model::update_backward_scales(Runtime& runtime, ProcessGroup* amax_group) {
  update_scales(runtime, registry_.backward_scales, amax_group);
}

void Model::zero_grad() {
  for (Parameter* parameter : registry_.parameters) {
    parameter->grad = {};
    if (parameter->local != nullptr) parameter->local->grad = {};
  }
}

}  // namespace fp8lab
