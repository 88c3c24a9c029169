#include "nn/model.h"

#include <fmt/core.h>

#include "autograd/checkpoint.h"
#include "nn/layer_table.h"
#include "nn/role_scales.h"

namespace fp8lab {

Model::Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options)
    : recipe_(recipe), checkpoint_layers_(options.checkpoint_layers) {
  Build build{.runtime = runtime, .recipe = recipe_, .registry = registry_, .dtype = options.dtype};
  const LayerRow& row = layer_row(options.layer);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    names_.push_back(fmt::format("layers[{}]", i));
    layers_.push_back(row.make(build, names_.back(), options.config));
  }
}

Variable Model::forward(Runtime& runtime, const Variable& x) {
  Variable value = x;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Module& layer = *layers_[i];
    if (checkpoint_layers_)
      value = checkpoint(runtime, names_[i], [&runtime, &layer](const Variable& in) { return layer.forward(runtime, in); }, value);
    else
      value = layer.forward(runtime, value);
  }
  return value;
}

void Model::update_forward_scales(Runtime& runtime) {
  for (RoleScales* scales : registry_.forward_scales) scales->update(runtime);
}

void Model::update_backward_scales(Runtime& runtime) {
  for (RoleScales* scales : registry_.backward_scales) scales->update(runtime);
}

void Model::zero_grad() {
  for (Parameter* parameter : registry_.parameters) parameter->grad = {};
}

}  // namespace fp8lab
