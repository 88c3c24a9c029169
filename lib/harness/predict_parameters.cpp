#include "harness/predict_parameters.h"

#include <algorithm>

#include "core/shape.h"

namespace fp8lab::closed_form {
namespace {

/// Rows of each rank: the same number from the first rank on, as long as there are any.
std::int64_t rows_of_shard(const Scenario& scenario, std::int64_t rows, std::int64_t rank) {
  const std::int64_t each = ceil_div(rows, scenario.sharding.shards);
  return std::clamp<std::int64_t>(rows - rank * each, 0, each);
}

/// What travels of one half of a weight in eight bits.
Gather gathered_half(const Scenario& scenario, const ScaleRows& scales, std::int64_t rows, std::int64_t cols) {
  const Bytes codes = rows * cols;
  if (scenario.decisions.strips_padding)
    return {.payload = codes, .scales = scales.filled(rows, cols), .wholes = codes + scales.padded(rows, cols)};
  Bytes arrays = 0;
  for (std::int64_t rank = 0; rank < scenario.sharding.shards; ++rank)
    arrays += scales.padded(rows_of_shard(scenario, rows, rank), cols);
  return {.payload = codes, .scales = arrays, .wholes = codes + arrays};
}

void gather_codes(const Scenario& scenario, std::int64_t rows, std::int64_t cols, ParameterNumbers& weight) {
  const RecipeNumbers& recipe = scenario.recipe;
  const Gather rowwise = gathered_half(scenario, recipe.gathered_rowwise, rows, cols);
  weight.forward = weight.backward = rowwise;
  if (recipe.halves_differ) {
    const Gather columnwise = gathered_half(scenario, recipe.gathered_columnwise, rows, cols);
    const bool both = !scenario.sharding.reshards || !scenario.decisions.gathers_by_pass;
    if (both) weight.forward += columnwise;
    weight.backward = columnwise;
    // A recomputed forward reads rows again.
    if (both || scenario.checkpoint) weight.backward += rowwise;
  } else if (!recipe.per_tensor || !scenario.any_orientation) {
    weight.transpose = rows * cols + (recipe.per_tensor ? 0 : recipe.weight_scales(cols, rows));
  }
}

ParameterNumbers parameter(const Scenario& scenario, std::int64_t rows, std::int64_t cols, bool in_product) {
  const ShardingNumbers& sharding = scenario.sharding;
  const std::int64_t own_rows = rows_of_shard(scenario, rows, 0);
  const bool cut =
      in_product && sharding.shards > 1 && ceil_div(rows, sharding.shards) % scenario.recipe.weight_block != 0;
  ParameterNumbers result;
  result.whole = rows * cols * scenario.element;
  result.shard_elems = own_rows * cols;
  result.shard = result.shard_elems * scenario.element;
  result.eight_bits = in_product && scenario.casts_weights && !cut;
  result.computes_as_kept = result.eight_bits && (!sharding.sharded || scenario.decisions.gathers_codes);
  const Cast shard_cast = result.eight_bits ? scenario.cast_weight(own_rows, cols) : Cast{};
  const Cast whole_cast = result.eight_bits ? scenario.cast_weight(rows, cols) : Cast{};
  const auto made = [&](Bytes values, const Cast& cast) {
    return take(values) + cast.course() + give(result.eight_bits ? values : 0);
  };
  result.kept = result.eight_bits ? shard_cast.both : result.shard;
  result.initialized = made(result.shard, shard_cast);
  if (!sharding.sharded) return result;

  if (!sharding.deferred) {
    const Bytes kept_whole = result.eight_bits ? whole_cast.both : result.whole;
    result.made_whole = made(result.whole, whole_cast);
    result.initialized = take(result.kept) + give(kept_whole);
    result.knows_initial_values = false;
  } else if (!scenario.decisions.initializes_shards) {
    result.initialized = take(result.whole) + take(result.kept) + give(result.whole);
    result.knows_initial_values = false;
  }
  if (result.computes_as_kept) {
    gather_codes(scenario, rows, cols, result);
  } else {
    result.forward = result.backward = {
        .payload = result.whole, .wholes = result.whole, .decoded = result.eight_bits ? result.shard : 0};
  }
  if (!sharding.reshards) result.backward = {};
  return result;
}

}  // namespace

Gather& Gather::operator+=(const Gather& other) {
  payload += other.payload;
  scales += other.scales;
  wholes += other.wholes;
  decoded += other.decoded;
  return *this;
}

ParameterNumbers vector_parameter(const Scenario& scenario, std::int64_t elems) {
  return parameter(scenario, elems, 1, false);
}

ParameterNumbers weight_parameter(const Scenario& scenario, std::int64_t out, std::int64_t in) {
  return parameter(scenario, out, in, true);
}

}  // namespace fp8lab::closed_form
