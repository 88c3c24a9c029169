#include "nn/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "nn/cores/role_scales.h"
#include "nn/cores/router_biases.h"
#include "nn/layer_table.h"
#include "nn/layers/language_head.h"
#include "nn/layers/token_embedding.h"

namespace fp8lab {
namespace {

/// A layer that runs as a checkpointed region.
class CheckpointedLayer final : public Module {
 public:
  CheckpointedLayer(std::string name, std::unique_ptr<Module> layer, KeptProducts keeps)
      : name_(std::move(name)), layer_(std::move(layer)), keeps_(keeps) {}
  Variable forward(Runtime& runtime, const Variable& x) override {
    if (!runtime.differentiates()) return layer_->forward(runtime, x);
    return checkpoint(
        runtime, name_, [this, &runtime](const Variable& in) { return layer_->forward(runtime, in); }, x, keeps_);
  }

 private:
  std::string name_;
  std::unique_ptr<Module> layer_;
  KeptProducts keeps_;
};

/// Layers that run in it take no gradient.
class FrozenScope {
 public:
  explicit FrozenScope(Runtime& runtime) : runtime_(runtime), mode_(runtime.mode) {
    if (mode_ == Runtime::Mode::kPlain) runtime_.mode = Runtime::Mode::kFrozen;
  }
  ~FrozenScope() { runtime_.mode = mode_; }
  FrozenScope(const FrozenScope&) = delete;
  FrozenScope& operator=(const FrozenScope&) = delete;

 private:
  Runtime& runtime_;
  Runtime::Mode mode_;
};

}  // namespace

LayerConfig ModelOptions::config_of(std::int64_t index) const {
  LayerConfig out = config;
  if (index % window_every != 0) out.window = 0;
  if (index >= dense_layers) return out;
  out.top_k = 0;
  out.ffn = dense_ffn;
  return out;
}

class Model::Root final : public Module {
 public:
  explicit Root(const Model& model) : model_(model) {}
  Variable forward(Runtime& runtime, const Variable& x) override {
    Variable value = model_.frozen_layers_ > 0 ? frozen(runtime, x) : embedded(runtime, x);
    for (std::size_t i = model_.frozen_layers_; i < model_.layers_.size(); ++i)
      value = model_.layers_[i].module->forward(runtime, value);
    return model_.head_ ? model_.head_->forward(runtime, value) : value;
  }

 private:
  Variable embedded(Runtime& runtime, const Variable& x) const {
    return model_.embedding_ ? model_.embedding_->forward(runtime, x) : x;
  }

  /// The output of the frozen layers, which depends on nothing that needs a gradient. Backward ends at it, and goes on
  /// with the node behind `x`: a sharded root's, if there is one.
  Variable frozen(Runtime& runtime, const Variable& x) const {
    const FrozenScope scope(runtime);
    Variable value = embedded(runtime, x);
    for (std::size_t i = 0; i < model_.frozen_layers_; ++i) {
      value.producer = nullptr;
      value = model_.layers_[i].module->forward(runtime, value);
    }
    value.producer = x.producer;
    return value;
  }

  const Model& model_;
};

Model::Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options)
    : recipe_(recipe), frozen_layers_(static_cast<std::size_t>(options.frozen_layers)) {
  const float deviation = options.init_deviation;
  if (options.frozen_layers < 0 || options.frozen_layers > options.layers)
    fail(fmt::format("model: {} of {} layers are to be frozen", options.frozen_layers, options.layers));
  const float scale = options.scaled_residuals ? std::sqrt(2.0f * static_cast<float>(options.layers)) : 1.0f;
  const auto build_with = [&](const Recipe& used) {
    return Build{.runtime = runtime,
                 .recipe = used,
                 .registry = registry_,
                 .dtype = options.dtype,
                 .eight_bit_weights = options.eight_bit_weights,
                 .fused_quantize = options.fused_quantize,
                 .deferred_init = options.deferred_init,
                 .cache_weights = options.cache_weights,
                 .initial_history_length =
                     used.activation.amax_source == AmaxSource::kHistory ? options.initial_history_length : 0,
                 .initial_in = options.initial_in,
                 .init_deviation = deviation,
                 .residual_deviation = deviation / scale};
  };
  if (options.vocabulary > 0) {
    Build build = build_with(plain_);
    embedding_ = std::make_unique<TokenEmbedding>(build, options.vocabulary, options.learned_positions, options.config);
    head_ = std::make_unique<LanguageHead>(build, options.tied_head ? &embedding_->table() : nullptr,
                                           options.vocabulary, options.config);
  }
  const LayerRow& row = layer_row(options.layer);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const bool plain = i < options.first_layers_plain || i >= options.layers - options.last_layers_plain;
    Build build = build_with(plain ? plain_ : recipe_);
    const std::size_t first_parameter = registry_.parameters.size();
    const std::string name = fmt::format("layers[{}]", i);
    std::unique_ptr<Module> layer = row.make(build, name, options.config_of(i));
    const bool recomputes = options.checkpoint_every > 0 && (i + 1) % options.checkpoint_every == 0;
    if (recomputes) layer = std::make_unique<CheckpointedLayer>(name, std::move(layer), options.kept_products);
    layers_.push_back({name, std::move(layer), first_parameter, recomputes});
  }
  if (frozen_layers_ > 0) freeze();
  root_ = std::make_unique<Root>(*this);
}

void Model::freeze() {
  if (embedding_) embedding_->freeze();
  const std::vector<Parameter*>& all = registry_.parameters;
  const std::size_t end = frozen_layers_ < layers_.size() ? layers_[frozen_layers_].first_parameter : all.size();
  for (std::size_t i = layers_.front().first_parameter; i < end; ++i) all[i]->frozen = true;
}

std::vector<Parameter*> Model::trained_parameters() const {
  std::vector<Parameter*> out;
  std::ranges::copy_if(registry_.parameters, std::back_inserter(out),
                       [](const Parameter* one) { return !one->frozen; });
  return out;
}

Model::~Model() = default;

std::vector<std::string> Model::layer_names() const {
  std::vector<std::string> names;
  for (const Layer& layer : layers_) names.push_back(layer.name);
  return names;
}

bool Model::recomputes(std::string_view layer) const {
  return std::ranges::any_of(layers_, [&](const Layer& one) { return one.recomputes && one.name == layer; });
}

void Model::wrap_modules(const Wrap& wrap) {
  const std::span<Parameter* const> all(registry_.parameters);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::size_t end = i + 1 < layers_.size() ? layers_[i + 1].first_parameter : all.size();
    layer.module =
        wrap(std::move(layer.module), layer.name, all.subspan(layer.first_parameter, end - layer.first_parameter));
  }
  const std::span<Parameter* const> own = all.first(layers_.front().first_parameter);
  if (!own.empty()) root_ = wrap(std::move(root_), "root", own);
}

void Model::update_forward_scales(Runtime& runtime, ProcessGroup* amax_group) {
  update_scales(runtime, registry_.forward_scales, amax_group);
}

void Model::update_backward_scales(Runtime& runtime, ProcessGroup* amax_group) {
  update_scales(runtime, registry_.backward_scales, amax_group);
}

void Model::update_router_biases(Runtime& runtime, ProcessGroup* ranks) {
  update_biases(runtime, registry_.router_biases, ranks);
}

void Model::zero_grad() {
  for (Parameter* parameter : registry_.parameters) {
    parameter->grad = {};
    if (parameter->local != nullptr) parameter->local->grad = {};
  }
}

}  // namespace fp8lab
