#pragma once

#include <cstdint>
#include <string_view>

#include "harness/cell/cell.h"
#include "harness/predict/predict_schedule.h"

// The numbers behind the words of a scenario, for the closed forms of predict.h. The tables restate the documented
// sizes of forms, recipes, architectures and fixes. They share no code with the modules that implement these, so that
// an error on either side becomes a difference.
namespace fp8lab::closed_form {

struct FormNumbers {
  std::string_view name;
  std::int64_t norm_parameters;    ///< a norm's parameters per column: gamma, and beta if it has one
  std::int64_t norm_statistics;    ///< f32 saved per row: 1 / deviation, and the mean if it has one
  std::int64_t activation_inputs;  ///< columns that the activation reads per column written: 2 (gate, up) or 1
  bool bias;
  bool rotary;
};

/// Bytes of the inverse scales of a rows x cols matrix whose blocks lie along its rows, padding included.
using ScaleBytes = Bytes (*)(std::int64_t rows, std::int64_t cols);

/// How a recipe quantizes the operands inside attention; used if the cell sets fp8_attention.
struct AttentionNumbers {
  bool casts = false;
  bool casts_output = false;      ///< also quantizes O, which is saved quantized, and dQKV before it leaves
  bool has_shells = false;        ///< Q, K and V that it casts are saved as storage, which has shells
  std::int64_t histories = 0;     ///< amax histories in each direction
  std::int64_t history_rows = 0;  ///< 0: equal to the recipe's rows
};

/// The layout of the scales of one orientation of a weight: one row of scales per `block` rows of the matrix; the
/// number of rows in the array is padded to a multiple of `multiple`.
struct ScaleRows {
  std::int64_t block = 1;
  std::int64_t multiple = 1;
  Bytes (*row)(std::int64_t cols) = nullptr;  ///< bytes of a row of scales; null: the orientation has no own scales

  Bytes padded(std::int64_t rows, std::int64_t cols) const;
  Bytes filled(std::int64_t rows, std::int64_t cols) const;
};

struct RecipeNumbers {
  std::string_view name;
  ScaleBytes activation_scales = nullptr;  ///< scales of activations and gradients; null: nothing is cast
  ScaleBytes weight_scales = nullptr;
  std::int64_t group_rows = 1;         ///< rows to a multiple of which the tokens of an expert are padded
  std::int64_t weight_block = 1;       ///< rows of a block, which no shard of a weight may cut
  bool orientations_differ = false;    ///< column-wise data of weights is not the transpose of row-wise data
  ScaleRows gathered_rowwise = {};     ///< scales that are gathered with the row-wise data of a weight
  ScaleRows gathered_columnwise = {};  ///< the same for the column-wise data, if orientations differ
  Bytes (*sent_scales)(std::int64_t cols) = nullptr;  ///< scales of a row in eight bits that travels to experts
  bool per_tensor = false;                            ///< one scale per tensor, which both orientations share
  bool measures_first = false;                        ///< the measured amax, f32, lives until its tensor is cast
  bool histories = false;  ///< x, W and dY of every product have a scale and an amax history, f32
  AttentionNumbers attention = {};
};

/// The bytes of a matrix in eight bits by orientation; 0 for an orientation that the architecture does not need.
struct OrientationBytes {
  Bytes rowwise = 0;
  Bytes columnwise = 0;
  Bytes scale = 0;  ///< the scale that both orientations share

  constexpr Bytes both() const { return rowwise + columnwise + scale; }
};

/// The bytes of a matrix that is cast to eight bits; all 0 if the recipe casts nothing.
struct Cast {
  Bytes both = 0;     ///< all orientations that the architecture needs
  Bytes kept = 0;     ///< the orientation that backward reads
  Bytes scratch = 0;  ///< freed at the end of the cast

  constexpr Schedule schedule() const { return allocate(scratch) + finish(); }
  /// The same if `scratch` is already allocated.
  constexpr Schedule finish() const { return allocate(both) + release(scratch); }
};

/// What the shells of saved quantized tensors hold.
enum class Shells {
  kEmpty,           ///< nothing, as with the fix
  kKeptByBackward,  ///< the buffers that backward restored, from then on
  kNeverEmptied,    ///< the saved buffers, from forward on
};

/// The decisions of fixes on which figures depend, each under the name of its fix, or of the first of several. The
/// defaults are those with the fix; "else": with the fix reverted.
struct Decisions {
  Shells module_shells = Shells::kEmpty;
  Shells fuser_shells = Shells::kEmpty;
  Shells attention_shells = Shells::kEmpty;
  Shells grouped_shells = Shells::kEmpty;
  /// FP8 weights are gathered as quantized data; else dequantized.
  bool gather_eight_bits = true;
  /// A pass gathers the orientation that it reads; else every pass gathers both.
  bool choose_usage_by_pass = true;
  /// Transposes of gathered weights are made in backward; else already in forward.
  bool validate_usage_by_pass = true;
  /// Deferred initialisation of sharded weights makes them in eight bits; else in high precision.
  bool keep_fp8_init_metadata = true;
  /// Padding of scales is not gathered; else it is.
  bool strip_scale_padding = true;
  /// Ranks share the amaxes of weights that are measured before they are cast; else they do not.
  bool share_amax_over_shards = true;
  /// Unsharded MXFP8 parameters are cut in eight bits; else shards are in high precision.
  bool split_in_eight_bits = true;
  /// A shard has a transpose of its own; else it keeps the transpose of the unsharded parameter instead.
  bool drop_transpose_in_make_like = true;
  /// Adam's state has the size of shards; else of unsharded parameters.
  bool shard_optimizer_state = true;
  /// Blocks are gathered row-wise and transposed locally; else both orientations travel.
  bool gather_blocks_row_wise = true;
  /// Under sharding, backward quantizes its weights again; else forward's copies are kept for it.
  bool requantize_in_backward = true;
  /// Transposes of gathered weights are freed by backward; else they stay until the layer's next forward.
  bool clear_gathered_transposes = true;
  /// Adam reads BF16 moments; else f32 copies of them.
  bool fuse_moment_casts = true;
  /// Zeros made like a weight have a scale of their own; else they share the weight's.
  bool own_scale_in_new_zeros = true;
  /// Data is copied between shards as bytes; else as values in high precision.
  bool copy_bytes_between_shards = true;
  /// An aligned slice is a view; else it is a tensor in high precision.
  bool view_aligned_slices = true;
  /// A sharded weight in blocks has no additional dequantized copy.
  bool flatten_without_copy = true;
  /// Adam finds the shards of sharded parameters, and so rewrites those in eight bits.
  bool unwrap_shards_in_adam = true;
  /// Adam recognizes weights in blocks, and so rewrites them.
  bool cast_blocks_in_adam = true;
  /// Adam measures weights whose amax must be known before they are cast; else it computes the scales of their last
  /// casts.
  bool measure_scale_in_adam = true;
  /// The quantizer of a weight gets the live row of a resized history; else it keeps the old history alive.
  bool rebind_amax_on_resize = true;
  /// A cached copy of a weight that lacks an orientation is made again.
  bool reset_incomplete_workspaces = true;
  /// Later micro-batches leave cached copies as they are; else kernels that cannot skip cast them again.
  bool skip_cached_casts = true;
  /// The same for the copies of experts; else all of them are cast again.
  bool skip_casts_of_experts = true;
  bool pad_only_eight_bits = true;
  bool pad_groups_to_blocks = true;
  /// Results of list operations are written back to FP8 weights.
  bool write_back_list_updates = true;
  /// Regions stash the scales of their layers; else recomputation under a history stops training.
  bool stash_inner_scales = true;
  /// A product whose input came in eight bits returns its gradient; else zeros in high precision.
  bool differentiate_quantized_inputs = true;
  /// Adam's launcher gets lists in parts; else it stops if a list needs too many handles.
  bool divide_adam_lists = true;
  /// The norm of gradients counts in 64 bits; else it stops above 2^31 elements.
  bool count_in_64_bits = true;
};

/// How the model is sharded. Figures describe rank 0, whose shards are never smaller than another rank's.
struct ShardingNumbers {
  bool sharded = false;
  bool replicated = false;  ///< every rank has all parameters, and gradients are averaged in buckets
  std::int64_t replicas = 1, shards = 1;
  bool reshards = false;  ///< unsharded parameters are freed after forward
  bool ahead = false;     ///< a layer's parameters are gathered while the layer before it computes
  bool deferred = false;  ///< parameters are initialised after sharding
  bool of_part = false;   ///< `shards` are the ranks that have the same experts, not all that shard
};

/// The gradients of a group of parameters, in the type of the parameters.
struct GradientBytes {
  Bytes unsharded = 0;
  Bytes shards = 0;         ///< rank 0's
  Bytes moved = 0;          ///< all ranks' shards, each padded to the rows of rank 0's
  Bytes short_of_rows = 0;  ///< unsharded ones of which some rank has fewer rows; they are copied to be padded
  Bytes padded = 0;         ///< the copies of those
};

/// What a forward does with the cached copy of a weight.
enum class Cached {
  kNever,    ///< nothing is cached: every forward casts a copy of its own
  kMade,     ///< makes it
  kWidened,  ///< casts it again, and adds the orientation that evaluation did not make
  kAgain,    ///< casts it again
  kRead,
};

/// The model, its batch and what a step keeps of it.
struct ShapeNumbers {
  explicit ShapeNumbers(const CellConfig& config);

  FormNumbers form;
  Bytes element;               ///< bytes of an element of parameters, activations and gradients
  Bytes reduced;               ///< bytes of an element of gradients while ranks add them up
  std::int64_t context_ranks;  ///< ranks that split every sequence between them
  std::int64_t expert_ranks;   ///< ranks that have the experts of a mixture between them
  bool fp8_dispatch;           ///< what travels to them is cast before, if anything is cast
  std::int64_t tokens;         ///< tokens of this rank
  std::int64_t seq;            ///< tokens of an entire sequence
  std::int64_t hidden, heads, kv_heads, head_dim, ffn;
  std::int64_t vocabulary;  ///< 0: no embedding and no head
  bool tied_head, learned_positions;
  std::int64_t q_rank, kv_rank;  ///< columns of the latents; 0: one product makes Q, K and V
  std::int64_t rope_dim;         ///< columns of the rotated part of a key that all heads have, if there are latents
  std::int64_t value_dim;        ///< columns of a head of V
  std::int64_t attended;         ///< columns of what attention makes
  std::int64_t packed;           ///< columns of Q, K and V side by side
  std::int64_t activated;        ///< columns that the activation reads
  std::int64_t experts;
  std::int64_t top_k;           ///< experts of a token in a mixture; 0: one MLP for all tokens
  std::int64_t shared_experts;  ///< experts of a mixture that all tokens have
  bool router_biases;           ///< a router's choice has biases, and counts the tokens of each expert
  bool aux_loss;                ///< backward of the router needs the logits and the counts of choices
  bool sigmoid_router;          ///< backward of the router needs the slopes of sigmoids
  /// Matrices that lie one below the other in the weight of a product: the experts', in the products of a mixture.
  std::int64_t matrices = 1;
  bool grouped;          ///< there is a product for each expert
  bool qkv_bias;         ///< the product that makes Q, K and V has a bias
  bool attention_sinks;  ///< each head has a learned logit
  bool qk_norm;          ///< every head of Q and K is normed
  bool rewrites_qkv;     ///< Q and K are normed or rotated in high precision
  bool uneven_split;     ///< groups of experts differ in size, and one is empty
  bool fused_mlp;
  bool dropout;
  bool checkpoint;
  Recompute recompute;
  bool keeps_product = false;  ///< a recomputed layer keeps the result of the product that is described
};

/// What the recipe casts, and how.
struct CastNumbers {
  CastNumbers(const CellConfig& config, Arm arm);

  const RecipeNumbers& recipe;
  std::int64_t history_rows;
  std::int64_t built_history_rows;  ///< until the first forward
  bool any_orientation;  ///< FP8 GEMMs read a per-tensor matrix in either orientation, so one orientation is enough
  bool operands;         ///< operands of matrix products are cast
  bool attention;
  bool attention_backward;
  bool exchanges_eight_bits;  ///< linear layers and attention exchange tensors in eight bits
  bool unstored;              ///< norms and activations write products' inputs in eight bits, never in high precision
  bool rows_unstored;         ///< the same for casts that make row-wise data only
  bool measured_early;  ///< norms and activations measure the amax of what they write; so does activations' backward
  bool weights;         ///< weights live in eight bits
  bool keeps_initial_on_host;  ///< and the values that they were cast from, in host memory
};

/// The part of a training that is described: the first micro-batch of the first step, or another.
struct Phase {
  bool resizes = false;           ///< this forward is the first, in which histories of another length are resized
  bool finds_transposes = false;  ///< backward finds the transposes of gathered weights that the backward before made
  bool adds_gradients = false;    ///< backward adds the gradients of unsharded parameters to an earlier micro-batch's
  bool evaluates = false;         ///< forward without backward: casts make row-wise data only
  Cached cached = Cached::kNever;
};

/// The numbers of one arm of a cell.
struct CellNumbers {
  CellNumbers(const CellConfig& config, Arm arm);

  bool frozen = false;         ///< these layers have no gradients; of the entire model: the embedding has none
  bool behind_frozen = false;  ///< the first of these layers follows frozen ones
  ShapeNumbers shape;
  CastNumbers casts;
  ShardingNumbers sharding;
  Decisions decisions;
  Phase phase;

  /// These numbers in a validation batch.
  CellNumbers in_validation(bool first) const;
  /// These numbers in a training pass without backward.
  CellNumbers without_backward() const;
  /// These numbers in the first micro-batch of the steps after the first.
  CellNumbers in_later_steps() const;
  /// These numbers in the micro-batches of any step after its first.
  CellNumbers in_later_micro_batches() const;
  /// True if micro-batches after the first of a step cast cached copies again.
  bool casts_copies_again() const;
  /// Norms and activations write products' inputs in eight bits, never in high precision.
  bool casts_unstored() const { return phase.evaluates ? casts.rows_unstored : casts.unstored; }
  /// The bytes in a reduction of gradients that have `bytes` before and after it.
  Bytes in_reduction(Bytes bytes) const { return bytes / shape.element * shape.reduced; }
  /// The reduction of a group's gradients: from unsharded ones alive to the shards that a rank keeps.
  Schedule reduction(const GradientBytes& of) const;
  /// The bytes of an activation or gradient of `cols` columns, not cast.
  Bytes plain(std::int64_t cols) const { return shape.tokens * cols * shape.element; }
  /// True if a recomputed layer keeps what attention returns.
  bool keeps_attention() const { return !phase.evaluates && is_selective(shape.recompute); }
  /// The numbers of product `index` of the layer.
  CellNumbers of_product(int index) const;
  /// The numbers of product `index` of the MLP, which follows the product after attention.
  CellNumbers of_mlp_product(int index) const;
  int products_before_attention() const { return shape.kv_rank > 0 ? 4 : 1; }
  Cast cast_activation(std::int64_t cols) const { return cast(casts.recipe.activation_scales, shape.tokens, cols); }
  Cast cast_weight(std::int64_t out, std::int64_t in) const { return cast(casts.recipe.weight_scales, out, in); }
  /// The bytes of an FP8 weight; only for a recipe that casts.
  OrientationBytes weight_orientations(std::int64_t out, std::int64_t in) const {
    return orientations(casts.recipe.weight_scales, out, in);
  }
  /// The first forward's change of `tensors` histories that are held together; `keeps_old`: something holds the old
  /// ones.
  Schedule resized_histories(std::int64_t tensors, bool keeps_old) const;
  /// The column-wise orientation of a matrix that came row-wise.
  Cast cast_columnwise(std::int64_t cols) const;
  /// A cast to row-wise data only, which attention uses on every architecture.
  Cast cast_rowwise(std::int64_t cols) const;
  /// A cast of a weight to row-wise data only.
  Cast cast_weight_rowwise(std::int64_t out, std::int64_t in) const;

 private:
  OrientationBytes orientations(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const;
  Cast cast(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const;
};

}  // namespace fp8lab::closed_form
