#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/activation_checkpoint.h"
#include "nn/build.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

struct ModelOptions {
  std::string_view layer = "transformer_layer";  ///< a row of the layer table
  std::int64_t layers = 1;
  LayerConfig config;
  /// 2: every second layer has the window of `config`, beginning with the first; the others see all earlier tokens.
  std::int64_t window_every = 1;
  /// Layers at the start that have one MLP, of inner width `dense_ffn`, instead of the mixture of experts of `config`.
  std::int64_t dense_layers = 0;
  std::int64_t dense_ffn = 0;
  DType dtype = DType::kBF16;
  /// 1: every layer is a checkpointed region, 2: every second one, beginning with the second; 0: none.
  std::int64_t checkpoint_every = 0;
  /// Results that checkpointed layers keep. They keep none that leave an operation in eight bits, and of attention none
  /// but of plain attention over entire sequences.
  KeptProducts kept_products = KeptProducts::kNone;
  bool eight_bit_weights = false;  ///< weights of matrix products are stored in the recipe's weight format
  /// Norms and activations cast or measure their results in the same kernel, if possible.
  bool fused_quantize = true;
  bool deferred_init = false;  ///< parameters get no storage: the sharding initialises each rank's shard
  /// Modules keep the eight-bit copies of unsharded weights in high precision, for all micro-batches of a step.
  bool cache_weights = false;
  /// Rows of amax histories until the first forward gives them the recipe's number of rows. So a model can be built
  /// under one recipe and run under another. 0: the recipe's number from the beginning.
  std::int64_t initial_history_length = 0;
  InitialValuesIn initial_in = InitialValuesIn::kSeed;  ///< for FP8 weights
  /// Layers at the start and at the end that the recipe leaves in `dtype`: nothing of them is quantized.
  std::int64_t first_layers_plain = 0;
  std::int64_t last_layers_plain = 0;
  /// Layers at the start that take no gradient, and then neither does the embedding, nor a head that is tied to it.
  std::int64_t frozen_layers = 0;

  /// Makes a language model with this many tokens: an embedding before the layers, a norm and a head after them.
  std::int64_t vocabulary = 0;
  bool tied_head = false;  ///< the head's matrix is the embedding's
  bool learned_positions = false;
  float init_deviation = 0.02f;  ///< standard deviation of matrices' initial values
  /// Matrices whose product is added to the residual stream have a deviation smaller by sqrt(2 layers), as in GPT-2.
  bool scaled_residuals = false;

  LayerConfig config_of(std::int64_t index) const;
};

class TokenEmbedding;
class LanguageHead;

/// A chain of layers that are equal except for the recipe, the MLP and the window, between the embedding and the head
/// of a language model if it has a vocabulary. These two have the parameters of the model's root; their types are never
/// eight bits. Keeps a copy of its recipe.
class Model {
 public:
  Model(Runtime& runtime, const Recipe& recipe, const ModelOptions& options);
  ~Model();

  /// Maps [tokens, hidden] to [tokens, hidden] or, in a language model, tokens of make_tokens() to logits, [tokens,
  /// vocabulary].
  Variable forward(Runtime& runtime, const Variable& x) { return root_->forward(runtime, x); }
  const std::vector<Parameter*>& parameters() const { return registry_.parameters; }
  /// The parameters that take a gradient, which an optimizer updates.
  std::vector<Parameter*> trained_parameters() const;
  std::size_t frozen_layers() const { return frozen_layers_; }
  /// Parameters, scales and biases of routers, for checkpoints.
  const Registry& registry() const { return registry_; }

  /// Returns a module in place of `module`. `parameters` are that module's own.
  using Wrap = std::function<std::unique_ptr<Module>(std::unique_ptr<Module> module, const std::string& name,
                                                     std::span<Parameter* const> parameters)>;
  /// Replaces each layer by the result of `wrap`, then the root, called "root", if it has parameters of its own.
  void wrap_modules(const Wrap& wrap);
  std::vector<std::string> layer_names() const;
  /// True if the layer runs its forward again in backward. False for the root.
  bool recomputes(std::string_view layer) const;

  /// Compute the scales of the next pass from the amaxes that a pass recorded: after forward, and after backward. With
  /// a group this is a collective, and the amaxes are the largest over its ranks. Without one, ranks that see different
  /// data get different scales.
  void update_forward_scales(Runtime& runtime, ProcessGroup* amax_group = nullptr);
  void update_backward_scales(Runtime& runtime, ProcessGroup* amax_group = nullptr);

  /// Moves the biases of routers by the tokens of each expert in the step, of all ranks if given; a collective then.
  void update_router_biases(Runtime& runtime, ProcessGroup* ranks = nullptr);

  /// Drops all gradients, gradients of shards included.
  void zero_grad();

 private:
  class Root;
  void freeze();

  Recipe recipe_;
  Recipe plain_ = make_recipe("bf16");         ///< recipe of the layers that stay in the model's `dtype`
  Registry registry_;                          ///< the root's parameters, then each layer's
  std::unique_ptr<TokenEmbedding> embedding_;  ///< null without a vocabulary, as is head_
  std::unique_ptr<LanguageHead> head_;
  struct Layer {
    std::string name;
    std::unique_ptr<Module> module;
    std::size_t first_parameter = 0;  ///< index in the registry; its parameters end at the next layer's
    bool recomputes = false;
  };
  std::vector<Layer> layers_;
  std::size_t frozen_layers_ = 0;
  std::unique_ptr<Module> root_;
};

}  // namespace fp8lab
