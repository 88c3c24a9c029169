#include "harness/predict/predict_parameters.h"

#include <algorithm>

#include "core/shape.h"

namespace fp8lab::closed_form {
namespace {

/// Rows of each rank: the same number from the first rank on, as long as there are any.
std::int64_t rows_of_shard(const Scenario& scenario, std::int64_t rows, std::int64_t rank) {
  const std::int64_t each = ceil_div(rows, scenario.sharding.shards);
  return std::clamp<std::int64_t>(rows - rank * each, 0, each);
}

/// What travels of one orientation of a weight in eight bits.
Gather gathered_orientation(const Scenario& scenario, const ScaleRows& scales, std::int64_t rows, std::int64_t cols) {
  const Bytes data = rows * cols;
  if (scenario.decisions.strips_padding)
    return {
        .payload = data, .scales = scales.filled(rows, cols), .unsharded_parameters = data + scales.padded(rows, cols)};
  Bytes arrays = 0;
  for (std::int64_t rank = 0; rank < scenario.sharding.shards; ++rank)
    arrays += scales.padded(rows_of_shard(scenario, rows, rank), cols);
  return {.payload = data, .scales = arrays, .unsharded_parameters = data + arrays};
}

void gather_data(const Scenario& scenario, std::int64_t rows, std::int64_t cols, ParameterNumbers& weight) {
  const RecipeNumbers& recipe = scenario.recipe;
  const Gather rowwise = gathered_orientation(scenario, recipe.gathered_rowwise, rows, cols);
  weight.forward = weight.backward = rowwise;
  if (recipe.orientations_differ) {
    const Gather columnwise = gathered_orientation(scenario, recipe.gathered_columnwise, rows, cols);
    const bool both = !scenario.sharding.reshards || !scenario.decisions.gathers_by_pass;
    if (both) weight.forward += columnwise;
    weight.backward = columnwise;
    // Forward that asks for columns finds none, and cannot make them.
    if (!both && !scenario.decisions.transposes_in_backward) weight.stops = true;
    // A recomputed forward reads rows again.
    if (both || scenario.checkpoint) weight.backward += rowwise;
  } else if (!recipe.per_tensor || !scenario.any_orientation) {
    weight.transpose = rows * cols + (recipe.per_tensor ? 0 : recipe.weight_scales(cols, rows));
  }
}

/// Cuts the shard out of an unsharded parameter in eight bits, and drops the unsharded parameter. Says what becomes of
/// `shard`.
Schedule cut_eight_bits(const Scenario& scenario, const OrientationBytes& unsharded, const OrientationBytes& own,
                        ParameterNumbers& shard) {
  const Decisions& decisions = scenario.decisions;
  shard.stops = unsharded.columnwise > 0 && (!decisions.splits_columnwise || !decisions.views_keep_transposes);
  if (scenario.recipe.orientations_differ) {
    // The cut is copied into zeros of its size, of which a slice is taken.
    const Bytes values = decisions.copies_bytes ? 0 : 4 * shard.shard_elems;
    const Bytes slice = decisions.slices_as_views ? 0 : shard.shard;
    shard.eight_bits = decisions.slices_as_views;
    const Bytes copy_released = shard.eight_bits ? 0 : own.both();
    return allocate(2 * own.both()) + allocate(values) + release(values) + allocate(slice) +
           release(own.both() + copy_released) + release(unsharded.both());
  }
  // One orientation after the other, each with a scale of its own at first.
  const Bytes rest = unsharded.columnwise > 0 ? unsharded.scale : 0;
  const Schedule rowwise = allocate(own.scale + own.rowwise) + release(unsharded.rowwise + unsharded.scale - rest);
  if (unsharded.columnwise == 0) return rowwise;
  const Schedule columnwise = allocate(own.scale + own.columnwise);
  if (decisions.drops_transposes)
    return rowwise + columnwise + release(own.scale) + release(unsharded.columnwise + rest);
  shard.kept = own.scale + own.rowwise + unsharded.columnwise;
  return rowwise + columnwise + release(own.scale + own.columnwise) + release(rest);
}

/// A matrix in eight bits, from values that live meanwhile.
Schedule cast_from(Bytes values, const Cast& cast) { return allocate(values) + cast.schedule() + release(values); }

/// How a weight in eight bits gets its values.
void initialize_eight_bits(const Scenario& scenario, std::int64_t rows, std::int64_t cols, ParameterNumbers& weight) {
  const ShardingNumbers& sharding = scenario.sharding;
  const std::int64_t own_rows = rows_of_shard(scenario, rows, 0);
  const OrientationBytes unsharded = scenario.weight_orientations(rows, cols),
                         own = scenario.weight_orientations(own_rows, cols);
  weight.kept = own.both();
  weight.average = own.both() - (scenario.decisions.owns_scales ? 0 : own.scale);
  const bool shards_at_once = !sharding.sharded || (sharding.deferred && scenario.decisions.initializes_shards);
  if (shards_at_once) {
    weight.initialized = cast_from(weight.shard, scenario.cast_weight(own_rows, cols));
    return;
  }
  const Schedule made = cast_from(weight.unsharded, scenario.cast_weight(rows, cols));
  const Schedule cut = cut_eight_bits(scenario, unsharded, own, weight);
  weight.made_unsharded = sharding.deferred ? Schedule{} : made;
  weight.initialized = sharding.deferred ? made + cut : cut;
  if (weight.eight_bits) return;
  weight.kept = weight.shard;
  weight.average = 4 * weight.shard_elems;
}

/// The same in high precision. `refused`: its format refuses the cut, so the unsharded parameter is decoded first.
void initialize_plain(const Scenario& scenario, std::int64_t rows, std::int64_t cols, bool refused,
                      ParameterNumbers& parameter) {
  const ShardingNumbers& sharding = scenario.sharding;
  parameter.kept = parameter.shard;
  parameter.average = 4 * parameter.shard_elems;
  parameter.initialized = allocate(parameter.shard);
  if (!sharding.sharded || (sharding.deferred && scenario.decisions.initializes_shards)) return;
  const Schedule cut = allocate(parameter.shard) + release(parameter.unsharded);
  if (sharding.deferred) {
    parameter.initialized = allocate(parameter.unsharded) + cut;
  } else if (!refused) {
    parameter.made_unsharded = allocate(parameter.unsharded);
    parameter.initialized = cut;
  } else {
    const Cast cast = scenario.cast_weight(rows, cols);
    parameter.made_unsharded = cast_from(parameter.unsharded, cast);
    parameter.initialized = allocate(parameter.unsharded) + release(cast.both) + cut;
  }
}

void set_gathers(const Scenario& scenario, std::int64_t rows, std::int64_t cols, ParameterNumbers& parameter) {
  const ShardingNumbers& sharding = scenario.sharding;
  parameter.computes_as_kept = parameter.eight_bits && (!sharding.sharded || scenario.decisions.gathers_quantized);
  if (!sharding.sharded) return;
  if (parameter.computes_as_kept) {
    gather_data(scenario, rows, cols, parameter);
  } else {
    parameter.forward = {.payload = parameter.unsharded,
                         .unsharded_parameters = parameter.unsharded,
                         .decoded = parameter.eight_bits ? parameter.shard : 0};
    parameter.backward = parameter.forward;
  }
  if (!sharding.reshards) parameter.backward = {};
}

ParameterNumbers parameter_numbers(const Scenario& scenario, std::int64_t rows, std::int64_t cols, bool in_product) {
  const ShardingNumbers& sharding = scenario.sharding;
  const bool eight_bits = in_product && scenario.casts_weights;
  const bool refused =
      eight_bits && sharding.shards > 1 && ceil_div(rows, sharding.shards) % scenario.recipe.weight_block != 0;
  ParameterNumbers result;
  result.unsharded = rows * cols * scenario.element;
  result.shard_elems = rows_of_shard(scenario, rows, 0) * cols;
  result.shard = result.shard_elems * scenario.element;
  result.eight_bits = eight_bits && !refused;
  if (result.eight_bits)
    initialize_eight_bits(scenario, rows, cols, result);
  else
    initialize_plain(scenario, rows, cols, refused, result);
  set_gathers(scenario, rows, cols, result);
  return result;
}

}  // namespace

Gather& Gather::operator+=(const Gather& other) {
  payload += other.payload;
  scales += other.scales;
  unsharded_parameters += other.unsharded_parameters;
  decoded += other.decoded;
  return *this;
}

ParameterNumbers vector_parameter(const Scenario& scenario, std::int64_t elems) {
  return parameter_numbers(scenario, elems, 1, false);
}

ParameterNumbers weight_parameter(const Scenario& scenario, std::int64_t out, std::int64_t in) {
  return parameter_numbers(scenario, out, in, true);
}

}  // namespace fp8lab::closed_form
