#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/reference/casts.h"
#include "harness/reference/matrix.h"
#include "harness/reference/sequence_parts.h"

namespace fp8lab::reference_step {

/// A value, and the map from its gradient to the gradient of what it was computed from.
struct Value {
  Matrix value;
  std::function<Matrix(const Matrix&)> backward;
};

/// Values computed one after another: the gradient passes them the other way round.
Value chained(std::vector<Value> values);

/// What the runtime's layer read and made in a step: its input, its output and the output's gradient.
struct SeenLayer {
  Matrix input, output, gradient;
};

/// The experts that the runtime's routers chose, by the name of the router's weight: token after token.
using SeenChoices = std::map<std::string, std::vector<std::int32_t>>;

/// A value for each expert, by the name of the router: "layers[0].mlp.router".
using ExpertValues = std::map<std::string, std::vector<double>>;

/// Choose the masks of dropout, together with the seed and the name of the place.
struct Draws {
  std::int64_t step = 0;
  std::int64_t first_row = 0;  ///< the micro-batch's first row among the rows of all ranks and micro-batches
};

struct Step {
  double loss = 0.0;
  Matrix output;
  NamedMatrices gradients;                      ///< zeros of frozen parameters
  std::map<std::string, double> largest_terms;  ///< in gradients that are sums over tokens: of vectors
  double largest_logit = 0.0;                   ///< in attention; its terms are added up as magnitudes
  ExpertValues tokens_of_experts;               ///< how many chose each expert
  Matrix embedded;                              ///< only for a language model
  std::vector<Matrix> layer_outputs;
  std::vector<Matrix> layer_gradients;  ///< gradients of each layer's output, as what follows it computes them; empty
                                        ///< of frozen layers
};

/// True if the parameter of this name takes no gradient.
bool is_frozen(const CellConfig& cell, std::string_view parameter);

/// A cell's model by its definition: forward, loss and every gradient in double, with the roundings of `recipe` or, if
/// `exact`, with none. Shares no code with the runtime.
class Model {
 public:
  Model(const CellConfig& cell, std::string_view recipe, bool exact) : cell_(cell), casts_(cell, recipe, exact) {}

  /// One training step without its optimizer. `x` and `target` are [tokens, hidden] or, of a language model, numbers of
  /// tokens, [tokens, 1]; token = position * batch + sequence. `target` is empty if the loss is the sum.
  /// `parameters` must outlive the call. With `seen` each layer's forward starts from the runtime's input and its
  /// backward from the runtime's gradient, so that differences do not add up from layer to layer. `share`: what the
  /// loss counts in the loss of the step, as its gradient does, and as the auxiliary losses of routers do.
  Step run(const Matrix& x, const Matrix& target, const NamedMatrices& parameters,
           const std::vector<SeenLayer>& seen = {}, double share = 1.0);
  /// The loss of an output, or of logits.
  double loss_of(const Matrix& output, const Matrix& target) const;
  /// Chooses the masks of the next runs.
  void set_draws(const Draws& draws) { draws_ = draws; }
  /// The tokens of the next runs are a part of each sequence: attention needs the tokens of all parts. run() is then
  /// collective over the ranks that have the parts.
  void set_parts(SequenceParts parts) { parts_ = std::move(parts); }
  /// Ranks of the runtime have the experts between them, rank `part` of `parts`: each computes the experts of its
  /// part, with the tokens of all these ranks. `gather`: as SequenceParts::gather. run() is then collective over these
  /// ranks.
  void set_expert_parts(SequenceParts parts) { expert_parts_ = std::move(parts); }
  /// As Casts::set_group().
  void set_group(std::function<void(std::vector<double>&)> largest) { casts_.set_group(std::move(largest)); }
  /// As Casts::set_casts_weights().
  void set_casts_weights(bool casts) { casts_.set_casts_weights(casts); }
  /// As Casts::set_seen_amaxes().
  void set_seen_amaxes(const SeenAmaxes* seen) { casts_.set_seen_amaxes(seen); }
  /// The runtime's choices are taken for tokens whose logits are nearly tied: two correct steps differ in the order of
  /// FP32 additions, so the same element of a norm's output may be a step or two of the stored type apart. Other tokens
  /// go to the experts with the largest logits of this step. `seen` must outlive the step; null: no choice is taken.
  void set_seen_choices(const SeenChoices* seen) { seen_choices_ = seen; }
  /// Biases that the choice of experts adds to its scores; null, or no entry: none. `biases` must outlive the step.
  void set_router_biases(const ExpertValues* biases) { router_biases_ = biases; }
  /// The matrices that the last step cast to eight bits, by name: "layers[0].fc1 input".
  const std::map<std::string, Matrix>& sources() const { return casts_.sources(); }

 private:
  using Layer = Value (Model::*)(const std::string&, const Matrix&);

  /// The tensors of a product that neighbours exchange in eight bits: x and the gradient of y are cast already, y and
  /// the gradient of x are cast as sums, before they are stored.
  struct Exchanged {
    bool x = false, y = false, grad_x = false, grad_y = false;
  };
  /// a [m, k] times the transpose of b [n, k], the operands of which these are parts, as the cell's fp8_sums say.
  /// `of_forward`: products of a forward are summed in one accumulator if no operand has blocks.
  Matrix product_of(const Operand& of_a, const Matrix& a, const Operand& of_b, const Matrix& b, bool of_forward) const;
  /// The gradient of a vector, and its largest term.
  void sum_over_tokens(const std::string& name, const Matrix& terms);
  Value linear(const std::string& name, const Matrix& x) { return linear(name, x, Exchanged{}); }
  Value linear(const std::string& name, const Matrix& x, const Exchanged& exchanged);
  Value grouped_linear(const std::string& name, const Matrix& x);
  Value norm(const std::string& name, const Matrix& x) { return norm(name, x, gpt()); }
  /// LayerNorm if `centred`, otherwise RMSNorm.
  Value norm(const std::string& name, const Matrix& x, bool centred);
  Value layernorm(const std::string& name, const Matrix& x) { return norm(name, x, true); }
  Value rmsnorm(const std::string& name, const Matrix& x) { return norm(name, x, false); }
  Value activation(const Matrix& x);
  /// `x` without the elements that the cell's dropout drops at `place`.
  Value dropout(const std::string& place, const Matrix& x) const;
  /// What multiplies P, as attention() has it: heads one below the other.
  Matrix attention_mask(const std::string& place) const;
  Value layernorm_linear(const std::string& name, const Matrix& x) { return layernorm_linear(name, x, Exchanged{}); }
  Value layernorm_linear(const std::string& name, const Matrix& x, const Exchanged& exchanged);
  Value layernorm_mlp(const std::string& name, const Matrix& x);
  // A mixture of experts (experts.cpp).
  Value expert_mlp(const std::string& name, const Matrix& x);
  /// The experts that all tokens have, from the norm's output.
  Value shared_experts(const std::string& name, const Matrix& n);
  /// A product whose input and gradient are operands.
  struct OperandValue {
    Matrix value;
    /// From the gradient as products read it, and as biases add it up.
    std::function<Matrix(const Operand&, const Matrix&)> backward;
  };
  /// `begins`: the first row of each expert, and the end of the last one.
  OperandValue experts_linear(const std::string& name, const Operand& input, const std::vector<std::int64_t>& begins);
  /// RMSNorm of every head of Q and of K.
  Value qk_norm(const std::string& name, const Matrix& qkv);
  Value rotary(const Matrix& qkv);
  // Multi-head latent attention (latents.cpp).
  /// Q, K and V packed, from the layer's input.
  Value latent_projections(const std::string& name, const Matrix& x);
  /// up(norm(down(n))).
  Value latent(const std::string& name, const Matrix& n);
  Matrix rotated(const Matrix& qkv, bool inverse) const;
  Value attention(const std::string& name, const Matrix& qkv);
  /// The same of all tokens of the sequences.
  Value entire_attention(const std::string& name, const Matrix& qkv);
  Value multihead_attention(const std::string& name, const Matrix& x);
  Value transformer_layer(const std::string& name, const Matrix& x);
  // For a language model (language.cpp). Their products are not cast under any recipe.
  Value embedding(const Matrix& tokens);
  Value head(const Matrix& x);
  /// Sets the loss of `step` by its output; returns the gradient of the output.
  Matrix cross_entropy(const Matrix& targets, Step& step) const;
  /// The same of the sum of the output, or of its distance to `target`.
  Matrix distance(const Matrix& target, Step& step) const;

  /// The other forms have RMSNorm, a gated activation and rotary embedding.
  bool gpt() const { return cell_.model.form == "gpt"; }
  bool gemma() const { return cell_.model.form == "gemma"; }
  /// Factor of an embedding's rows, in the type of the parameters.
  double embedding_scale() const;
  std::int64_t kv_heads() const { return cell_.model.kv_heads == 0 ? cell_.model.heads : cell_.model.kv_heads; }
  /// True if the layer that runs has a mixture of experts.
  bool routes() const { return routes_tokens(model_of_layer(cell_.model, layer_)); }
  std::int64_t head_dim() const { return head_dim_of(cell_.model); }
  /// True if nothing between their product and attention changes Q and K.
  bool keeps_qkv() const { return gpt() && !cell_.model.qk_norm; }
  /// Positions in a sequence, in the order of this rank's tokens.
  std::vector<std::int64_t> own_positions() const { return positions(cell_.model.seq, parts_.part, parts_.parts); }
  /// Rows of each expert's group.
  std::vector<std::int64_t> group_rows() const;

  const CellConfig& cell_;
  Casts casts_;
  const NamedMatrices* parameters_ = nullptr;
  const SeenChoices* seen_choices_ = nullptr;
  const ExpertValues* router_biases_ = nullptr;
  double share_ = 1.0;  ///< what the loss of the running step counts
  ExpertValues tokens_of_experts_;
  std::int64_t layer_ = 0;  ///< whose forward runs
  Draws draws_;
  SequenceParts parts_;
  SequenceParts expert_parts_;
  NamedMatrices gradients_;
  std::map<std::string, double> largest_terms_;
  double largest_logit_ = 0.0;
};

}  // namespace fp8lab::reference_step
