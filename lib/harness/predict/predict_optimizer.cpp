#include "harness/predict/predict_optimizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"

namespace fp8lab::closed_form {
namespace {

struct MomentNumbers {
  Moments type;
  Bytes bytes;
  Bytes scale;  ///< bytes of the scale that is kept for each moment of a parameter
};
constexpr MomentNumbers kMoments[] = {
    {Moments::kF32, 4, 0}, {Moments::kBF16, 2, 0}, {Moments::kF16, 2, kF32}, {Moments::kE4M3, 1, kF32}};

struct MasterNumbers {
  Master master;
  Bytes of_bf16;  ///< bytes per element of a bf16 parameter; parameters in f32 need no masters
  Bytes of_eight_bits;
};
constexpr MasterNumbers kMasters[] = {{Master::kNone, 0, 0}, {Master::kF32, kF32, kF32}, {Master::kRemainder, 2, kF32}};

/// The row whose first member is `value`.
template <class Row, std::size_t N, class Value, class First>
const Row& row_of(Value value, const Row (&rows)[N], First Row::* first) {
  const Row* found = std::find_if(rows, rows + N, [&](const Row& row) { return value == row.*first; });
  check(found != rows + N, "predict: a value of the scenario has no row");
  return *found;
}

/// Temporary bytes, all alive at the same time.
Schedule at_once(Bytes bytes) { return allocate(bytes) + release(bytes); }

class OptimizerSchedule {
 public:
  OptimizerSchedule(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                    const EndsAccount& ends)
      : training_(config.training), cell_(cell), layers_(layers), ends_(ends) {
    for (const ParameterNumbers& parameter : ends.parameters) {
      if (parameter.frozen) continue;
      elems_ += parameter.shard_elems;
      average_ += parameter.average;
    }
    layers.visit([&](std::int64_t count, const LayerAccount& layer) {
      for (const ParameterNumbers& parameter : layer.parameters) {
        if (parameter.frozen) continue;
        elems_ += count * parameter.shard_elems;
        average_ += count * parameter.average;
        if (!parameter.eight_bits) continue;
        eight_bit_weights_ += count;
        (parameter.of_part ? eight_bits_of_part_ : eight_bits_of_all_) = true;
        eight_bit_values_ += count * parameter.shard;
      }
    });
  }

  OptimizerNumbers adam() const {
    const MomentNumbers& moments = row_of(training_.moments, kMoments, &MomentNumbers::type);
    const MasterNumbers& masters = row_of(training_.master_weights, kMasters, &MasterNumbers::master);
    const auto state_of = [&](const ParameterNumbers& parameter) {
      const std::int64_t elems =
          cell_.decisions.shard_optimizer_state ? parameter.shard_elems : parameter.unsharded / cell_.shape.element;
      const Schedule made = allocate(2 * (elems * moments.bytes + moments.scale));
      const Bytes each = parameter.eight_bits ? masters.of_eight_bits : cell_.shape.element == 2 ? masters.of_bf16 : 0;
      // Masters of an eight-bit parameter are made from its initial values, which it no longer holds; a copy of them
      // lives until the masters are made. Eight bits are dequantized into the masters themselves.
      const bool copies = parameter.eight_bits && training_.masters_from != MastersFrom::kEightBits;
      const Bytes initial = copies ? parameter.shard : 0;
      return made + allocate(initial) + allocate((parameter.eight_bits ? parameter.shard_elems : elems) * each) +
             release(initial);
    };
    const auto state_of_all = [&](const std::vector<ParameterNumbers>& parameters) {
      Schedule state;
      for (const ParameterNumbers& parameter : parameters)
        if (!parameter.frozen) state += state_of(parameter);
      return state;
    };
    const bool clips = training_.clip_norm > 0.0;
    const Schedule made = state_of_all(ends_.parameters) + layers_.each([&](const LayerAccount& layer) {
      return state_of_all(layer.parameters);
    }) + allocate(clips ? 3 * kF32 : 0);
    const bool casts = (!cell_.sharding.sharded || cell_.decisions.unwrap_shards_in_adam) &&
                       (cell_.casts.recipe.per_tensor || cell_.decisions.cast_blocks_in_adam);
    const Bytes widened =
        training_.moments == Moments::kBF16 && !cell_.decisions.fuse_moment_casts ? 2 * kF32 * elems_ : 0;
    const Schedule step = allocate(widened) + (casts ? cast_masters() : Schedule{}) + release(widened);
    return {.state = made.net,
            .first_step = made + step,
            .later_step = step,
            .amax_reductions = casts && cell_.decisions.measure_scale_in_adam ? reductions(1) : 0,
            .amax_groups = groups(),
            .amaxes = measured(),
            .reduces_norm = clips};
  }

  /// List operations, one at a time. Parameters in eight bits are decoded for each operation.
  OptimizerNumbers foreach_adam() const {
    const bool decays = training_.weight_decay != 0.0, decoupled = decays && training_.decoupled_decay;
    const Bytes copies = kF32 * elems_;
    const Schedule on_parameters = at_once(eight_bit_values_ + written_back());
    Schedule step;
    if (decoupled) step += on_parameters;
    if (decays && !decoupled) step += allocate(copies) + at_once(eight_bit_values_);
    step += allocate(copies) + on_parameters + release(decays && !decoupled ? 2 * copies : copies);
    const Schedule made = allocate(2 * kF32 * elems_);
    return {.state = made.net,
            .first_step = made + step,
            .later_step = step,
            .amax_reductions = reductions_of_lists(decoupled ? 2 : 1),
            .amax_groups = groups(),
            .amaxes = measured()};
  }

  /// Without decay one list operation; decay is added to copies of the gradients.
  OptimizerNumbers sgd() const {
    Schedule step = at_once(eight_bit_values_ + written_back());
    const Bytes copies = kF32 * elems_;
    if (training_.weight_decay != 0.0) step = allocate(copies) + at_once(eight_bit_values_) + step + release(copies);
    return {.first_step = step,
            .later_step = step,
            .amax_reductions = reductions_of_lists(1),
            .amax_groups = groups(),
            .amaxes = measured()};
  }

  /// Adds the update of the average: one list operation on averages and weights, all of them decoded. Averages have
  /// quantizers of their own, copied before the first forward.
  void add_average(OptimizerNumbers& numbers) const {
    const Schedule update = at_once(2 * eight_bit_values_ + written_back());
    numbers.average = average_;
    numbers.first_step += update;
    numbers.later_step += update;
    numbers.amax_reductions += reductions_of_lists(1);
    numbers.amax_groups = groups();
    numbers.amaxes = measured();
  }

 private:
  /// The cast of master weights to eight-bit weights. With a scale per tensor the cast itself rounds the masters to the
  /// nominal type; with block scales a temporary holds the rounded masters of one parameter at a time.
  Schedule cast_masters() const {
    Bytes rounded = 0;
    if (cell_.shape.element != kF32 && !cell_.casts.recipe.per_tensor)
      layers_.visit([&](std::int64_t, const LayerAccount& layer) {
        for (const ParameterNumbers& parameter : layer.parameters)
          if (parameter.eight_bits && !parameter.frozen) rounded = std::max(rounded, parameter.shard);
      });
    // Each weight's amax or, if the scale of its last cast is computed, that scale; and the 1 that is divided.
    const std::int64_t scalars = measured() + (measured() > 0 && !cell_.decisions.measure_scale_in_adam ? 1 : 0);
    return at_once(scalars * kF32 + rounded);
  }

  /// The number of weights whose amax is measured before they are cast.
  std::int64_t measured() const { return cell_.casts.recipe.measures_first ? eight_bit_weights_ : 0; }
  std::int64_t groups() const { return eight_bits_of_part_ && eight_bits_of_all_ ? 2 : 1; }
  std::int64_t reductions(std::int64_t casts) const {
    return cell_.decisions.share_amax_over_shards && measured() > 0 ? casts : 0;
  }
  std::int64_t reductions_of_lists(std::int64_t operations) const {
    return cell_.decisions.write_back_list_updates ? reductions(operations) : 0;
  }
  /// The bytes of the amaxes of a list operation's results.
  Bytes written_back() const { return cell_.decisions.write_back_list_updates ? measured() * kF32 : 0; }

  const TrainingConfig& training_;
  const CellNumbers& cell_;
  const LayersAccount& layers_;
  const EndsAccount& ends_;
  std::int64_t elems_ = 0, eight_bit_weights_ = 0;
  bool eight_bits_of_part_ = false, eight_bits_of_all_ = false;
  Bytes eight_bit_values_ = 0, average_ = 0;
};

/// True if a list of tensors stops Adam's first step: the launcher needs a handle for each tensor of each list, and one
/// more; and the norm's kernel has 32 bits for offsets.
bool stops_in_lists(const TrainingConfig& training, const CellNumbers& cell, const LayersAccount& layers) {
  constexpr std::int64_t kHandles = 20'321, kReached = std::int64_t{1} << 31;
  const Decisions& decisions = cell.decisions;
  if (decisions.divide_adam_lists && decisions.count_in_64_bits) return false;
  std::map<std::pair<bool, std::int64_t>, std::int64_t> tensors;  // by kind of parameter and number of lists
  std::int64_t largest = 0;
  const auto count = [&](std::int64_t times, const ParameterNumbers& parameter) {
    if (parameter.frozen) return;
    const bool casts = parameter.eight_bits && cell.casts.recipe.histories;
    const bool has_master = training.master_weights != Master::kNone && cell.shape.element != kF32;
    const std::int64_t lists = casts ? 8 : has_master && !parameter.eight_bits ? 5 : 4;
    tensors[{parameter.is_vector, lists}] += times;
    largest = std::max(largest, parameter.shard_elems);
  };
  for (const ParameterNumbers& parameter : EndsAccount(cell).parameters) count(1, parameter);
  layers.visit([&](std::int64_t times, const LayerAccount& layer) {
    for (const ParameterNumbers& parameter : layer.parameters) count(times, parameter);
  });
  if (!decisions.count_in_64_bits && training.clip_norm > 0.0 && largest > kReached) return true;
  return !decisions.divide_adam_lists &&
         std::ranges::any_of(tensors, [](const auto& list) { return list.first.second * list.second + 1 > kHandles; });
}

}  // namespace

bool has_closed_form(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers) {
  const TrainingConfig& t = config.training;
  if (t.resume_at > 0) return false;  // temporary bytes of saving and loading depend on the files
  // Validation frees what a step left of the copies that it should have freed.
  if (t.validate_every > 0 && layers.sum(&LayerAccount::left_transposes) > 0) return false;
  if (t.optimizer == Optimizer::kNone || t.optimizer == Optimizer::kSgd) return true;
  if (t.optimizer == Optimizer::kForeachAdam)
    return t.master_weights == Master::kNone && t.moments == Moments::kF32 && t.clip_norm == 0.0;
  if (stops_in_lists(t, cell, layers)) return false;
  bool eight_bits = false;
  layers.visit([&](std::int64_t, const LayerAccount& layer) {
    for (const ParameterNumbers& parameter : layer.parameters)
      eight_bits = eight_bits || (parameter.eight_bits && !parameter.frozen);
  });
  // A master weight cannot be copied into a state of another shape: the first step ends in an error. Remainders are not
  // copied.
  const bool copies = t.master_weights == Master::kF32 || eight_bits || cell.shape.element != 2;
  if (cell.sharding.sharded && !cell.decisions.shard_optimizer_state && t.master_weights != Master::kNone && copies)
    return false;
  return t.master_weights != Master::kNone || !eight_bits;
}

OptimizerNumbers optimizer_numbers(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                                   const EndsAccount& ends) {
  const OptimizerSchedule optimizer(config, cell, layers, ends);
  OptimizerNumbers numbers;
  if (config.training.optimizer == Optimizer::kAdam) numbers = optimizer.adam();
  if (config.training.optimizer == Optimizer::kForeachAdam) numbers = optimizer.foreach_adam();
  if (config.training.optimizer == Optimizer::kSgd) numbers = optimizer.sgd();
  if (config.training.weight_average) optimizer.add_average(numbers);
  return numbers;
}

}  // namespace fp8lab::closed_form
