#pragma once

#include <cstdint>
#include <string_view>

#include "harness/cell/cell.h"
#include "harness/predict/predict_schedule.h"

// What the words of a scenario mean in numbers, for the closed forms of predict.h. The tables restate what forms,
// recipes, architectures and fixes promise. They share nothing with the rooms that keep the promise, so that a slip
// on either side shows.
namespace fp8lab::closed_form {

struct FormNumbers {
  std::string_view name;
  std::int64_t norm_parameters;    ///< of a norm, per column: gamma, and beta where it has one
  std::int64_t norm_statistics;    ///< f32 per row: the mean where it has one, 1 / deviation
  std::int64_t activation_inputs;  ///< columns read per column written: gate and up, or one
  bool bias;
  bool rotary;
};

/// Bytes of the inverse scales of a rows x cols matrix whose blocks lie along its rows, padding included.
using ScaleBytes = Bytes (*)(std::int64_t rows, std::int64_t cols);

/// What a recipe does to the operands inside attention, where the scenario asks for it.
struct AttentionNumbers {
  bool casts = false;
  bool casts_output = false;      ///< O, which is saved so, and dQKV on its way out
  std::int64_t histories = 0;     ///< in each direction
  std::int64_t history_rows = 0;  ///< 0: as many as the recipe's
};

/// How the scales of a weight's orientation lie: one row of them for `block` rows of the matrix, in an array of a
/// multiple of `multiple` such rows.
struct ScaleRows {
  std::int64_t block = 1;
  std::int64_t multiple = 1;
  Bytes (*row)(std::int64_t cols) = nullptr;  ///< bytes of each; null: there are none of this orientation's own

  Bytes padded(std::int64_t rows, std::int64_t cols) const;
  Bytes filled(std::int64_t rows, std::int64_t cols) const;
};

struct RecipeNumbers {
  std::string_view name;
  ScaleBytes activation_scales = nullptr;  ///< of gradients too; null: nothing is cast
  ScaleBytes weight_scales = nullptr;
  std::int64_t weight_block = 1;       ///< rows that no shard of a weight may cut
  bool orientations_differ = false;    ///< column-wise weights are no transposes of row-wise ones
  ScaleRows gathered_rowwise = {};     ///< scales that travel with a weight's quantized data
  ScaleRows gathered_columnwise = {};  ///< where orientations differ
  bool per_tensor = false;             ///< one scale, which both orientations share
  bool measures_first = false;         ///< the measured scale, f32, lives until its tensor is cast
  bool histories = false;              ///< x, W and dY of every product have a scale and a history, f32
  AttentionNumbers attention = {};
};

/// A matrix in eight bits, one orientation after the other: those that this architecture makes.
struct OrientationBytes {
  Bytes rowwise = 0;
  Bytes columnwise = 0;
  Bytes scale = 0;  ///< that both share

  constexpr Bytes both() const { return rowwise + columnwise + scale; }
};

/// A matrix cast to eight bits. All zero where the recipe casts nothing.
struct Cast {
  Bytes both = 0;     ///< every orientation that this architecture makes
  Bytes kept = 0;     ///< the orientation that backward reads
  Bytes scratch = 0;  ///< gone once the cast is done

  constexpr Schedule schedule() const { return allocate(scratch) + finish(); }
  /// The same where `scratch` is there already.
  constexpr Schedule finish() const { return allocate(both) + release(scratch); }
};

/// What the shells of saved storage hold when a fix is reverted.
enum class Shells {
  kEmpty,
  kKeptByBackward,  ///< what backward restored, from then on
  kNeverEmptied,    ///< what was saved, from forward on
};

/// What fixes decide, as far as figures depend on it.
struct Decisions {
  Shells module_shells = Shells::kEmpty;
  Shells fuser_shells = Shells::kEmpty;
  Shells attention_shells = Shells::kEmpty;
  bool gathers_quantized = true;       ///< of weights in eight bits; else the values that they stand for
  bool gathers_by_pass = true;         ///< the orientation that a pass reads; else both in every pass
  bool transposes_in_backward = true;  ///< else in forward already
  bool initializes_shards = true;      ///< else unsharded parameters, cut afterwards
  bool strips_padding = true;          ///< of scales that travel
  bool shares_amaxes = true;           ///< of weights that are measured before they are cast
  bool keeps_quantizers = true;        ///< of weights in eight bits; else each forward leaves its own behind
  bool splits_columnwise =
      true;  ///< of unsharded parameters that are cut; else they cannot be where orientations lie apart
  bool drops_transposes = true;  ///< of the unsharded parameter; else a shard keeps it instead of its own
  bool owns_scales = true;       ///< zeros like a weight; else they share its scale
  bool copies_bytes = true;      ///< from shard to shard; else values
  bool slices_as_views = true;   ///< else a slice is in high precision
  bool views_keep_transposes = true;
  bool finds_shards = true;       ///< Adam does, and so rewrites those in eight bits
  bool writes_lists_back = true;  ///< what list operations make of weights in eight bits
};

/// How the ranks share the model. Figures are those of rank 0, whose shards are as large as any.
struct ShardingNumbers {
  bool sharded = false;
  std::int64_t replicas = 1, shards = 1;
  bool reshards = false;  ///< unsharded parameters go after forward
  bool ahead = false;     ///< unsharded parameters come while the layer before is at work
  bool deferred = false;  ///< nobody makes a full first
};

/// One arm of a scenario.
struct Scenario {
  Scenario(const CellConfig& cell, Arm arm);

  const FormNumbers& form;
  const RecipeNumbers& recipe;
  Bytes element;  ///< of parameters, activations and gradients
  std::int64_t tokens, hidden, heads, ffn;
  std::int64_t packed;     ///< columns of Q, K and V side by side
  std::int64_t activated;  ///< columns that the activation reads
  std::int64_t history_rows;
  bool any_orientation;  ///< products read a per-tensor matrix either way round
  bool casts;            ///< products' operands
  bool casts_attention;
  bool casts_unstored;  ///< what norms and activations hand to products is never there in high precision
  bool measured_early;  ///< it is, and with its amax; and so is the gradient that an activation hands over
  bool casts_weights;   ///< for good: they live in eight bits
  bool fused_mlp;
  bool dropout;
  bool checkpoint;
  ShardingNumbers sharding;
  Decisions decisions;

  /// One activation or gradient of that many columns, as it is.
  Bytes plain(std::int64_t cols) const { return tokens * cols * element; }
  Cast cast_activation(std::int64_t cols) const { return cast(recipe.activation_scales, tokens, cols); }
  Cast cast_weight(std::int64_t out, std::int64_t in) const { return cast(recipe.weight_scales, out, in); }
  /// Of a recipe that casts.
  OrientationBytes weight_orientations(std::int64_t out, std::int64_t in) const {
    return orientations(recipe.weight_scales, out, in);
  }
  /// Row-wise alone, as attention wants it on every architecture.
  Cast cast_rowwise(std::int64_t cols) const;

 private:
  OrientationBytes orientations(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const;
  Cast cast(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const;
};

}  // namespace fp8lab::closed_form
