#include "harness/predict/predict_optimizer.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kF32 = 4;

struct MomentNumbers {
  Moments type;
  Bytes bytes;
  Bytes scale;  ///< beside each moment of a parameter
};
constexpr MomentNumbers kMoments[] = {
    {Moments::kF32, 4, 0}, {Moments::kBF16, 2, 0}, {Moments::kF16, 2, kF32}, {Moments::kE4M3, 1, kF32}};

struct MasterNumbers {
  Master master;
  Bytes of_bf16;  ///< bytes an element; parameters in f32 need none
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

/// Several at once: highest together.
Schedule at_once(Bytes bytes) { return allocate(bytes) + release(bytes); }

class OptimizerSchedule {
 public:
  OptimizerSchedule(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer)
      : training_(cell.training), scenario_(scenario), layer_(layer), layers_(cell.model.layers) {
    for (const ParameterNumbers& parameter : layer.parameters) {
      elems_ += layers_ * parameter.shard_elems;
      average_ += layers_ * parameter.average;
      if (!parameter.eight_bits) continue;
      eight_bit_weights_ += layers_;
      eight_bit_values_ += layers_ * parameter.shard;
    }
  }

  OptimizerNumbers adam() const {
    const MomentNumbers& moments = row_of(training_.moments, kMoments, &MomentNumbers::type);
    const MasterNumbers& masters = row_of(training_.master_weights, kMasters, &MasterNumbers::master);
    Schedule state;
    for (const ParameterNumbers& parameter : layer_.parameters) {
      state += allocate(2 * (parameter.shard_elems * moments.bytes + moments.scale));
      const Bytes each = parameter.eight_bits ? masters.of_eight_bits : scenario_.element == 2 ? masters.of_bf16 : 0;
      // Made from the initial values where the parameter has lost them; they live until that is done.
      const Bytes initial = parameter.eight_bits ? parameter.shard : 0;
      state += allocate(initial) + allocate(parameter.shard_elems * each) + release(initial);
    }
    const bool clips = training_.clip_norm > 0.0;
    const Schedule made = repeat(layers_, state) + allocate(clips ? 3 * kF32 : 0);
    const bool casts = !scenario_.sharding.sharded || scenario_.decisions.finds_shards;
    const Schedule cast = casts ? cast_masters() : Schedule{};
    return {.state = made.net,
            .first_step = made + cast,
            .later_step = cast,
            .amax_reductions = casts && scenario_.decisions.keeps_quantizers ? reductions(1) : 0,
            .amaxes = measured(),
            .reduces_norm = clips};
  }

  /// Lists of tensors, an operation at a time. Members in eight bits are decoded for each operation.
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
            .amax_reductions = scenario_.decisions.keeps_quantizers ? reductions_of_lists(decoupled ? 2 : 1) : 0,
            .amaxes = measured()};
  }

  /// One list operation on averages and weights, all decoded. Averages have quantizers of their own, taken before the
  /// first forward.
  void add_average(OptimizerNumbers& numbers) const {
    const Schedule update = at_once(2 * eight_bit_values_ + written_back());
    numbers.average = average_;
    numbers.first_step += update;
    numbers.later_step += update;
    numbers.amax_reductions += reductions_of_lists(1);
    numbers.amaxes = measured();
  }

 private:
  /// Under one scale masters are rounded as they are cast; for blocks a temporary holds them rounded, one at a time.
  Schedule cast_masters() const {
    Bytes rounded = 0;
    if (scenario_.element != kF32 && !scenario_.recipe.per_tensor)
      for (const ParameterNumbers& parameter : layer_.parameters)
        if (parameter.eight_bits) rounded = std::max(rounded, parameter.shard);
    return at_once(measured() * kF32 + rounded);
  }

  /// Weights that are measured before they are cast.
  std::int64_t measured() const { return scenario_.recipe.measures_first ? eight_bit_weights_ : 0; }
  std::int64_t reductions(std::int64_t casts) const {
    return scenario_.decisions.shares_amaxes && measured() > 0 ? casts : 0;
  }
  std::int64_t reductions_of_lists(std::int64_t operations) const {
    return scenario_.decisions.writes_lists_back ? reductions(operations) : 0;
  }
  /// Amaxes of the results of a list operation.
  Bytes written_back() const { return scenario_.decisions.writes_lists_back ? measured() * kF32 : 0; }

  const TrainingConfig& training_;
  const Scenario& scenario_;
  const LayerAccount& layer_;
  std::int64_t layers_;
  std::int64_t elems_ = 0, eight_bit_weights_ = 0;
  Bytes eight_bit_values_ = 0, average_ = 0;
};

}  // namespace

bool has_closed_form(const CellConfig& cell, const LayerAccount& layer) {
  const TrainingConfig& t = cell.training;
  if (t.resume_at > 0) return false;  // what saving and loading hold for a moment depends on the files
  if (t.optimizer == Optimizer::kNone) return true;
  if (t.optimizer == Optimizer::kForeachAdam)
    return t.master_weights == Master::kNone && t.moments == Moments::kF32 && t.clip_norm == 0.0;
  return t.master_weights != Master::kNone || std::none_of(layer.parameters.begin(), layer.parameters.end(),
                                                           [](const ParameterNumbers& p) { return p.eight_bits; });
}

OptimizerNumbers optimizer_numbers(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer) {
  const OptimizerSchedule optimizer(cell, scenario, layer);
  OptimizerNumbers numbers;
  if (cell.training.optimizer == Optimizer::kAdam) numbers = optimizer.adam();
  if (cell.training.optimizer == Optimizer::kForeachAdam) numbers = optimizer.foreach_adam();
  if (cell.training.weight_average) optimizer.add_average(numbers);
  return numbers;
}

}  // namespace fp8lab::closed_form
