#pragma once

#include <optional>
#include <vector>

#include "harness/eager/mixture.h"
#include "harness/eager/trained_layer.h"

// A transformer layer, or only its MLP, in eager PyTorch, tensor by tensor: what forward allocates and saves, and when
// backward frees it. Operations have the order of autograd: the node that was made last runs first, and frees what it
// saved, and the gradient that it was given, when it has ended.
namespace fp8lab::eager {

/// torchao casts a tensor to eight bits by operations of their own: an FP32 copy, scaled, clamped.
Block cast_to_float8(Heap& heap, Bytes elements, bool is_f32, Stream stream = Stream::kCompute);

/// A product y = x W, with the parameters of which it consists: a weight, and a bias if the layers have them.
struct Product {
  std::vector<std::size_t> parameters;  ///< positions in the group
  Bytes inputs = 0, outputs = 0;
  bool is_kept = false;  ///< a recomputed layer keeps what it returns
};

/// The random state that a kernel of attention returns.
inline constexpr Bytes kStateOfKernel = 16;

/// What a norm norms of a token: `columns`, as rows of equal length.
struct Normed {
  Bytes columns = 0, rows = 1;
};

/// A norm's saved tensors.
struct SavedNorm {
  Block input_f32 = 0, normalized = 0;  ///< for RMSNorm on a host
  Block mean = 0, deviation = 0;
};

/// Backward of a host's RMSNorm, which is composed of FP32 operations: from the gradient of its output, which it frees
/// with what the norm saved, to the gradient of its input. Returns 0 if the input takes no gradient.
Block composed_norm_backward(const Numbers& numbers, Heap& heap, SavedNorm& saved, Block& gradient, Normed of,
                             bool input_takes_gradient = true);

class Layer : public TrainedLayer {
 public:
  /// The layer `index` of the model. `numbers` and `heap` must outlive it.
  Layer(const Numbers& numbers, Heap& heap, Bytes index);

  void make_buffers() override {
    if (mixture_) mixture_->make();
    if (numbers_.has_sinks) heap_.allocate(angles_of(numbers_.seq), Owner::kParameters);
  }

  /// Under recomputation only the input is kept, and what the layer keeps of products and attention. A frozen layer
  /// keeps nothing, and leaves its input to whoever calls.
  Block forward(Block input, bool keeps_input) override;
  Block backward(Block gradient) override;

 private:
  Product product(Bytes inputs, Bytes outputs) { return product(inputs, outputs, numbers_.bias); }
  Product product(Bytes inputs, Bytes outputs, bool has_bias);
  std::vector<std::size_t> norm();
  std::size_t vector(Bytes rows);

  void run_forward(bool keeps);
  /// False if norms save copies in place of the residual stream.
  bool saves_stream() const;
  /// True for a host's RMSNorm in 16 bits, which saves an FP32 copy in place of its input.
  bool copies_norms_input() const;
  /// False if nothing that reads the second norm's output saves it.
  bool saves_normed() const;
  /// False if a norm that reads the layer's input saves no tensor that is the input.
  bool saves_input() const;
  /// True if the norm of the residual stream `input` returns a gradient of it.
  bool takes_gradient(const Block& input) const { return &input != &input_ || input_takes_gradient_; }
  Block normalize(SavedNorm& saved, bool keeps, bool input_takes_gradient);
  /// RMSNorm of `input`; `keeps`: backward follows.
  Block rms_norm(SavedNorm& saved, Normed of, bool keeps, bool input_takes_gradient = true);
  /// `input`: the norm's input if it is freed too, or null.
  Block rms_norm_backward(SavedNorm& saved, Normed of, Block& gradient, const std::vector<std::size_t>& parameters,
                          bool input_takes_gradient = true, Block* input = nullptr);
  /// Norms of Q and K, before they are rotated.
  void norm_heads(bool keeps);
  void norm_heads_backward(Block& of_query, Block& of_key);
  /// What CUDA's RMSNorm copies because it is not contiguous: Q and K among the columns of one product.
  Block contiguous(Normed of);
  Block normalize_backward(SavedNorm& saved, Block& input, Block& gradient, const std::vector<std::size_t>& of);
  /// From the gradient of the activation's output, which it frees, to the gradient of the MLP's input.
  Block activation_backward(Block& of_activated);
  Block attention(bool keeps);
  Block attention_backward(Block& gradient);
  /// Multi-head latent attention (latents.cpp).
  void make_latents();
  Block latent_attention(bool keeps);
  Block latent_attention_backward(Block& gradient);
  /// From the gradients of the normed latents to the sum of their gradients of the norm's output.
  Block key_latent_backward(Block& of_key, Block& of_value);
  Block query_latent_backward(Block& of_query);
  /// Attention with sinks (sinks.cpp).
  void make_sinks();
  Block sink_attention(bool keeps);
  Block sink_attention_backward(Block& gradient);
  /// From the gradient of the output times the shares of its rows, to the gradient of the output. Frees it.
  Block sinks_backward(Block& of_attended);
  /// Cosines and sines of so many tokens.
  Bytes angles_of(Bytes tokens) const;
  /// Rotates a wide matrix by cosines and sines, and its backward, which frees the gradient.
  Block turned(Bytes columns);
  Block turned_backward(Bytes columns, Block& gradient);
  /// SDPA of query_, key_ and value_.
  void attend(bool keeps);
  struct OfAttention {
    Block query = 0, key = 0, value = 0;
  };
  /// The gradients of SDPA's inputs. Frees `of_attended`, and what SDPA saved.
  OfAttention attend_backward(Block& of_attended);
  /// The same over ranks that have sequences between them (ring.cpp).
  bool has_ring() const { return numbers_.context_parallel > 1; }
  /// True if a call of attention has only some of the rank's queries, which are joined to the others.
  bool merges_parts_of_queries() const;
  void attend_in_ring(bool keeps);
  OfAttention ring_backward(Block& of_attended);
  /// SDPA as a composition of products in FP32, and its backward.
  void compose_attention(bool keeps);
  OfAttention composed_backward(Block& of_attended);
  /// True if the matrices of all heads are one batch of matrices without a copy.
  bool merges_heads() const { return !numbers_.in_titan() || numbers_.batch == 1; }
  /// Writes the tables of rotary angles that a layer of the worker makes.
  void make_rotary_tables();
  Block rotated(Bytes columns);
  void rotate_backward(Bytes columns, Block& gradient);
  Block multiply(const Product& product);
  /// The product without its bias, if torchao adds that by an operation of its own.
  Block product_of(const Product& product);
  Block float8_backward(const Product& product);
  Block cast(Bytes columns) { return cast_to_float8(heap_, numbers_.tokens * columns, numbers_.element == kF32); }
  /// The weight in eight bits; 0 if it has them already.
  Block cast_weight(const Product& product);
  Block multiply_backward(const Product& product, Block& input, Block& gradient, bool frees_input = true);
  void make_gradient(std::size_t parameter) { eager::make_gradient(numbers_, heap_, parameters[parameter]); }
  /// Ends an operation that made the gradients of these parameters.
  void add_gradients(const std::vector<std::size_t>& of) {
    for (const std::size_t parameter : of) heap_.free(parameters[parameter].added);
  }
  /// `queries`, `keys`: their tokens.
  Block flash_backward_workspace(Bytes queries, Bytes keys);
  /// Adds `more` to the gradient `sum`: in place, but as a third tensor if a TorchDispatchMode watches, or if both are
  /// `of_products`, whose results are views of matrices.
  void accumulate(Block& sum, Block& more, bool of_products = false);
  /// The same for tensors of `bytes`.
  void accumulate(Block& sum, Block& more, Bytes bytes);
  Block allocate(Bytes bytes) { return heap_.allocate(bytes, Owner::kSaved); }
  Block temporary(Bytes bytes) { return heap_.allocate(bytes, Owner::kTemporaries); }
  /// What a product or attention returns. If `is_kept`, recomputation finds what the first forward made.
  Block result(bool is_kept, Bytes bytes) { return kept_.make(is_kept, bytes); }
  /// Frees a tensor, unless it is a result that recomputation will find.
  void drop(Block& block) { kept_.drop(block); }
  /// Drops a tensor that backward does not need.
  void done(Block& block, bool keeps) {
    if (!keeps) drop(block);
  }

  const Numbers& numbers_;
  Heap& heap_;
  bool frozen_;
  bool input_takes_gradient_;  ///< false for the first layer that is trained behind frozen ones
  bool recomputed_;
  KeptResults kept_;
  std::vector<std::size_t> norm1_, norm2_, q_norm_, k_norm_;
  Product qkv_, q_, k_, v_, proj_, fc1_, gate_, up_, fc2_;
  std::size_t sinks_ = 0;
  Product q_down_, q_up_, kv_down_, kv_up_, k_rope_;  ///< latent attention's

  bool keeps_input_ = false;
  Block input_ = 0, middle_ = 0;  ///< the residual stream before attention, and before the MLP
  SavedNorm saved1_, saved2_, saved_q_, saved_k_;
  Block normed1_ = 0, packed_ = 0, value_ = 0, cosines_ = 0, sines_ = 0, query_ = 0, key_ = 0, attended_ = 0;
  Block raw_query_ = 0, raw_key_ = 0;  ///< before their norms, if products of their own made them
  Block sums_ = 0, seed_ = 0, offset_ = 0;
  Block q_latent_ = 0, q_normed_ = 0, kv_latent_ = 0, kv_normed_ = 0;
  Block scaled_query_ = 0, scaled_key_ = 0, scores_ = 0, value_f32_ = 0;  ///< composed attention's
  Block angles_ = 0, shares_ = 0, narrow_shares_ = 0;                     ///< with sinks
  Block raw_attended_ = 0;          ///< what attention returned, if the next product reads a copy of it
  std::optional<Mixture> mixture_;  ///< in the place of the MLP
  Block normed2_ = 0, activation_input_ = 0, gate_output_ = 0, up_output_ = 0, silu_ = 0, activated_ = 0;
};

}  // namespace fp8lab::eager
