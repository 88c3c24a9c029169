#include "harness/predict/predict_parameters.h"

#include <algorithm>

#include "core/shape.h"

namespace fp8lab::closed_form {
namespace {

/// The rows of rank 0's shard. Later ranks may have fewer, and are padded to this number.
std::int64_t rows_of_shard(const CellNumbers& cell, std::int64_t rows) { return ceil_div(rows, cell.sharding.shards); }

/// The rows that all shards have together, padding included.
std::int64_t rows_of_shards(const CellNumbers& cell, std::int64_t rows) {
  return cell.sharding.shards * rows_of_shard(cell, rows);
}

/// The gather of one orientation of an FP8 weight.
Gather gathered_orientation(const CellNumbers& cell, const ScaleRows& scales, std::int64_t rows, std::int64_t cols) {
  const std::int64_t own = rows_of_shard(cell, rows);
  const Bytes data = rows_of_shards(cell, rows) * cols;
  const bool strips = cell.decisions.strip_scale_padding;
  const Bytes travel = cell.sharding.shards * (strips ? scales.filled(own, cols) : scales.padded(own, cols));
  const Bytes stored = strips ? std::max(travel, scales.padded(rows, cols)) : travel;
  return {.payload = data, .scales = travel, .unsharded_parameters = data + stored};
}

/// The gather of column-wise blocks. They travel as a copy without padding, in the order of rows.
Gather gathered_untransposed(const CellNumbers& cell, std::int64_t rows, std::int64_t cols) {
  const std::int64_t block = cell.casts.recipe.weight_block;
  const auto scales = [&](std::int64_t of) { return kF32 * ceil_div(of, block) * ceil_div(cols, block); };
  const std::int64_t own = rows_of_shard(cell, rows);
  const Bytes data = cell.sharding.shards * own * cols, of_blocks = cell.sharding.shards * scales(own);
  return {.payload = data,
          .scales = of_blocks,
          .unsharded_parameters = data + of_blocks,
          .decoded = own * cols + scales(own)};
}

void gather_data(const CellNumbers& cell, std::int64_t rows, std::int64_t cols, ParameterNumbers& weight) {
  const RecipeNumbers& recipe = cell.casts.recipe;
  const Gather rowwise = gathered_orientation(cell, recipe.gathered_rowwise, rows, cols);
  weight.forward = weight.backward = rowwise;
  if (recipe.orientations_differ) {
    const Gather columnwise = gathered_orientation(cell, recipe.gathered_columnwise, rows, cols);
    const bool both = !cell.sharding.reshards || !cell.decisions.choose_usage_by_pass;
    if (both) weight.forward += columnwise;
    weight.backward = columnwise;
    // Forward would need column-wise data, which was not gathered and cannot be made from row-wise data.
    if (!both && !cell.decisions.validate_usage_by_pass) weight.stops = true;
    // A forward that is recomputed in backward reads row-wise data again.
    if (both || cell.shape.checkpoint) weight.backward += rowwise;
  } else if (!recipe.per_tensor || !cell.casts.any_orientation) {
    weight.transpose = rows * cols + (recipe.per_tensor ? 0 : recipe.weight_scales(cols, rows));
    const bool travels = !recipe.per_tensor && !cell.decisions.gather_blocks_row_wise;
    // A gather makes what its pass reads; forward's if backward does not gather. A reshard does not free it.
    weight.transposes_early = travels || !cell.sharding.reshards || !cell.decisions.choose_usage_by_pass;
    if (weight.transposes_early) weight.forward.transposed = allocate(weight.transpose);
    if (travels) {
      const Gather columnwise = gathered_untransposed(cell, rows, cols);
      weight.forward += columnwise;
      weight.backward += columnwise;
      // Forward's copy is alive until backward's replaces it.
      weight.backward.transposed = allocate(weight.transpose) + release(weight.transpose);
    } else if (!weight.transposes_early && cell.decisions.validate_usage_by_pass) {
      weight.backward.transposed = allocate(weight.transpose);
    }
  }
}

/// The schedule of cutting the shard `own` out of an unsharded parameter in eight bits and freeing the latter. Sets the
/// members of `shard` that depend on the cut.
Schedule cut_eight_bits(const CellNumbers& cell, const OrientationBytes& unsharded, const OrientationBytes& own,
                        ParameterNumbers& shard) {
  const Decisions& decisions = cell.decisions;
  if (cell.casts.recipe.orientations_differ) {
    // The cut part is copied into zeros of its size; then a slice of those is taken.
    const Bytes values = decisions.copy_bytes_between_shards ? 0 : 4 * shard.shard_elems;
    const Bytes slice = decisions.view_aligned_slices ? 0 : shard.shard;
    shard.eight_bits = decisions.view_aligned_slices;
    const Bytes copy_released = shard.eight_bits ? 0 : own.both();
    return allocate(2 * own.both()) + allocate(values) + release(values) + allocate(slice) +
           release(own.both() + copy_released) + release(unsharded.both());
  }
  // One orientation is cut after the other; at first each has a scale of its own.
  const Bytes rest = unsharded.columnwise > 0 ? unsharded.scale : 0;
  const Schedule rowwise = allocate(own.scale + own.rowwise) + release(unsharded.rowwise + unsharded.scale - rest);
  if (unsharded.columnwise == 0) return rowwise;
  const Schedule columnwise = allocate(own.scale + own.columnwise);
  if (decisions.drop_transpose_in_make_like)
    return rowwise + columnwise + release(own.scale) + release(unsharded.columnwise + rest);
  shard.kept = own.scale + own.rowwise + unsharded.columnwise;
  return rowwise + columnwise + release(own.scale + own.columnwise) + release(rest);
}

/// Casts a matrix from `values` bytes in high precision, which live during the cast only.
Schedule cast_from(Bytes values, const Cast& cast) { return allocate(values) + cast.schedule() + release(values); }

/// Sets how an FP8 weight is initialised.
void initialize_eight_bits(const CellNumbers& cell, std::int64_t rows, std::int64_t cols, ParameterNumbers& weight) {
  const ShardingNumbers& sharding = cell.sharding;
  const std::int64_t own_rows = rows_of_shard(cell, rows);
  const OrientationBytes unsharded = cell.weight_orientations(rows, cols),
                         own = cell.weight_orientations(own_rows, cols);
  weight.kept = own.both();
  weight.average = own.both() - (cell.decisions.own_scale_in_new_zeros ? 0 : own.scale);
  const bool shards_at_once = !sharding.sharded || sharding.deferred;
  if (shards_at_once) {
    weight.initialized = cast_from(weight.shard, cell.cast_weight(own_rows, cols));
  } else {
    weight.made_unsharded = cast_from(weight.unsharded, cell.cast_weight(rows, cols));
    weight.initialized = cut_eight_bits(cell, unsharded, own, weight);
    if (!weight.eight_bits) {
      weight.kept = weight.shard;
      weight.average = 4 * weight.shard_elems;
    }
  }
  const bool has_copy = weight.eight_bits && sharding.sharded && !cell.casts.recipe.per_tensor;
  const Bytes copy = has_copy && !cell.decisions.flatten_without_copy ? weight.shard : 0;
  weight.kept += copy;
  weight.initialized += allocate(copy);
}

/// Sets how a parameter in high precision is initialised. `refused`: it was to be in eight bits, but its format refuses
/// the cut, so the unsharded parameter is decoded first.
void initialize_plain(const CellNumbers& cell, std::int64_t rows, std::int64_t cols, bool refused,
                      ParameterNumbers& parameter) {
  const ShardingNumbers& sharding = cell.sharding;
  parameter.kept = parameter.shard;
  parameter.average = 4 * parameter.shard_elems;
  parameter.initialized = allocate(parameter.shard);
  if (!sharding.sharded || sharding.deferred) return;
  const Schedule cut = allocate(parameter.shard) + release(parameter.unsharded);
  if (!refused) {
    parameter.made_unsharded = allocate(parameter.unsharded);
    parameter.initialized = cut;
  } else {
    const Cast cast = cell.cast_weight(rows, cols);
    parameter.made_unsharded = cast_from(parameter.unsharded, cast);
    parameter.initialized = allocate(parameter.unsharded) + release(cast.both) + cut;
  }
}

void set_gathers(const CellNumbers& cell, std::int64_t rows, std::int64_t cols, ParameterNumbers& parameter) {
  const ShardingNumbers& sharding = cell.sharding;
  parameter.computes_as_kept = parameter.eight_bits && (!sharding.sharded || cell.decisions.gather_eight_bits);
  if (!sharding.sharded) return;
  if (parameter.computes_as_kept) {
    gather_data(cell, rows, cols, parameter);
  } else {
    parameter.forward = {.payload = parameter.padded,
                         .unsharded_parameters = parameter.padded,
                         .decoded = parameter.eight_bits ? parameter.shard : 0};
    parameter.backward = parameter.forward;
  }
  for (Gather* gather : {&parameter.forward, &parameter.backward})
    gather->own = (gather->payload + gather->scales) / sharding.shards;
  if (!sharding.reshards) parameter.backward = {};
}

ParameterNumbers parameter_numbers(const CellNumbers& cell, std::int64_t rows, std::int64_t cols, bool in_product) {
  const ShardingNumbers& sharding = cell.sharding;
  const bool eight_bits = in_product && cell.casts.weights;
  const bool splits_blocks =
      sharding.shards > 1 && ceil_div(rows, sharding.shards) % cell.casts.recipe.weight_block != 0;
  const bool loses_eight_bits = sharding.sharded && (sharding.deferred ? !cell.decisions.keep_fp8_init_metadata
                                                                       : cell.casts.recipe.orientations_differ &&
                                                                             !cell.decisions.split_in_eight_bits);
  const bool refused = eight_bits && (splits_blocks || loses_eight_bits);
  ParameterNumbers result;
  result.unsharded = rows * cols * cell.shape.element;
  result.padded = rows_of_shards(cell, rows) * cols * cell.shape.element;
  result.shard_elems = rows_of_shard(cell, rows) * cols;
  result.shard = result.shard_elems * cell.shape.element;
  result.to_be_fp8 = eight_bits;
  result.eight_bits = eight_bits && !refused;
  result.of_part = sharding.of_part;
  if (result.eight_bits)
    initialize_eight_bits(cell, rows, cols, result);
  else
    initialize_plain(cell, rows, cols, refused, result);
  set_gathers(cell, rows, cols, result);
  if (cell.casts.keeps_initial_on_host) {
    if (eight_bits && (!sharding.sharded || !sharding.deferred)) result.host_made = result.unsharded;
    if (result.eight_bits && sharding.sharded) result.host_kept = result.shard;
  }
  return result;
}

}  // namespace

Gather& Gather::operator+=(const Gather& other) {
  payload += other.payload;
  scales += other.scales;
  own += other.own;
  unsharded_parameters += other.unsharded_parameters;
  decoded += other.decoded;
  transposed += other.transposed;
  return *this;
}

void add_gradient(const ParameterNumbers& parameter, GradientBytes& sums) {
  sums.unsharded += parameter.unsharded;
  sums.shards += parameter.shard;
  sums.moved += parameter.padded;
  if (parameter.padded == parameter.unsharded) return;
  sums.short_of_rows += parameter.unsharded;
  sums.padded += parameter.padded;
}

ParameterNumbers vector_parameter(const CellNumbers& cell, std::int64_t elems) {
  ParameterNumbers numbers = parameter_numbers(cell, elems, 1, false);
  numbers.is_vector = true;
  return numbers;
}

ParameterNumbers table_parameter(const CellNumbers& cell, std::int64_t rows, std::int64_t cols) {
  return parameter_numbers(cell, rows, cols, false);
}

ParameterNumbers weight_parameter(const CellNumbers& cell, std::int64_t out, std::int64_t in) {
  return parameter_numbers(cell, out, in, true);
}

}  // namespace fp8lab::closed_form
