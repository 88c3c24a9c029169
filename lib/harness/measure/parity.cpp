#include "harness/measure/parity.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/cast_counts.h"
#include "harness/measure/compared_run.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/scores.h"

namespace fp8lab {
namespace {

using Metrics = std::map<std::string, MetricValue>;

constexpr std::string_view kMetrics[] = {"parity.loss_gap",
                                         "parity.loss_progress",
                                         "parity.validation_loss",
                                         "parity.mean_loss_gap",
                                         "parity.mean_loss_gap_margin",
                                         "parity.output_sqnr_db",
                                         "parity.grad_sqnr_db",
                                         "parity.weight_sqnr_db",
                                         "parity.weights_moved",
                                         "parity.shards_moved",
                                         "parity.ranks_equal",
                                         "parity.gathered_equals_unsharded",
                                         "parity.scales_equal",
                                         "parity.validation_keeps_scales",
                                         "parity.bitwise_equal",
                                         "parity.clip_fraction",
                                         "parity.underflow_fraction",
                                         "parity.values_cast",
                                         "parity.same_weights_output_sqnr_db",
                                         "parity.same_weights_grad_sqnr_db",
                                         "parity.grad_norm_ratio",
                                         "parity.update_norm_ratio",
                                         "parity.twin_faults",
                                         "parity.twin_tensors",
                                         "parity.twin_noise"};

std::vector<double> mean_losses(ProcessGroup* world, const std::vector<float>& losses) {
  return mean_by_step(of_all_ranks(world, losses, "losses"), losses.size());
}

/// The mean over ranks of every validation's loss.
std::vector<ValidationLoss> mean_validations(ProcessGroup* world, const TrainingRun& run) {
  const std::vector<ValidationLoss> all = of_all_ranks(world, run.validations(), "validation losses");
  std::vector<ValidationLoss> mean = run.validations();
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i].loss = 0.0;
    for (std::size_t j = i; j < all.size(); j += mean.size()) mean[i].loss += all[j].loss;
    mean[i].loss /= static_cast<double>(all.size() / mean.size());
  }
  return mean;
}

/// Tensors of one kind that are compared with BF16's: their metric, and the name of each tensor.
struct Compared {
  std::string metric;
  std::string of;
  const std::vector<std::string>& names;
  const Lists& reference;
  const Lists& values;
};

void put_sqnr(ProcessGroup* world, ArmResult& result, const Compared& tensors) {
  std::vector<Noise> mine;
  for (std::size_t i = 0; i < tensors.reference.size(); ++i)
    mine.push_back(noise_of(tensors.reference[i], tensors.values[i]));
  put_noise(result, tensors.metric, tensors.of, tensors.names, of_all_ranks(world, mine, tensors.metric));
}

std::uint64_t hash_of(const std::vector<Stored>& parameters) {
  std::uint64_t hash = kFnv1aBasis;
  for (const Stored& parameter : parameters)
    for (const std::vector<std::byte>& buffer : parameter) {
      hash = fnv1a_word(buffer.size(), hash);
      for (std::size_t i = 0; i < buffer.size(); i += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, buffer.data() + i, std::min(sizeof word, buffer.size() - i));
        hash = fnv1a_word(word, hash);
      }
    }
  return hash;
}

/// True if the buffers that both have are equal; nothing if they have no buffer in common, as when a format refused
/// its shards. Only common buffers are compared, because the transpose of data with one scale per tensor is not
/// gathered but made when it is needed.
std::optional<bool> same_bytes(const Stored& a, const Stored& b) {
  std::optional<bool> same;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!a[i].empty() && !b[i].empty()) same = same.value_or(true) && a[i] == b[i];
  return same;
}

/// True if both hold the same bytes. If the column-wise orientation, the last two buffers, `is_transpose`, one arm may
/// make it at the gather and the other when it is read, so it is compared only if both have it.
bool equal_stored(const Stored& a, const Stored& b, bool is_transpose) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool made_later = is_transpose && i >= 3 && (a[i].empty() || b[i].empty());
    if (!made_later && a[i] != b[i]) return false;
  }
  return true;
}

/// Puts parity.ranks_equal; NaN if a weight is not finite, so that ranks that diverged alike fail every gate. `parts`:
/// neighbours that have the experts between them, of which each is compared with ranks that have the same ones.
void put_ranks_equal(ProcessGroup* world, const Lists& weights, std::uint64_t stored_hash, int parts,
                     Metrics& metrics) {
  const std::vector<std::uint64_t> hashes = of_all_ranks(world, std::vector{stored_hash}, "hashes of stored weights");
  const bool finite = on_all_ranks(world, std::ranges::all_of(weights, all_finite), "finite weights");
  bool equal = true;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    equal = equal && hashes[rank] == hashes[rank % static_cast<std::size_t>(parts)];
  if (finite)
    put(metrics, "parity.ranks_equal", equal ? 1.0 : 0.0);
  else
    put(metrics, "parity.ranks_equal", std::numeric_limits<double>::quiet_NaN(), "a weight is not finite");
}

/// Puts parity.scales_equal, which names the module in which a rank's scales differ from rank 0's; NaN if one is not
/// finite. `planted`: this rank reports others. Collective.
void put_scales_equal(ProcessGroup* world, const std::string& absent, std::map<std::string, std::vector<float>> scales,
                      bool planted, Metrics& metrics) {
  std::vector<std::uint64_t> mine;
  std::vector<std::string> names;
  bool finite = true;
  for (const auto& [owner, values] : scales) {
    names.push_back(owner);
    mine.push_back(fp8lab::hash_of(values) + (planted ? 1 : 0));
    finite = finite && all_finite(values);
  }
  const std::vector<std::uint64_t> all = of_all_ranks(world, mine, "hashes of scales");
  const bool finite_on_all = on_all_ranks(world, finite, "finite scales");
  if (!absent.empty()) return put(metrics, "parity.scales_equal", std::nullopt, absent);
  std::string differs;
  for (std::size_t i = 0; i < all.size() && differs.empty(); ++i)
    if (all[i] != all[i % mine.size()])
      differs = fmt::format("scales of {}, rank {}: they differ from the scales of rank 0", names[i % mine.size()],
                            i / mine.size());
  if (finite_on_all)
    put(metrics, "parity.scales_equal", differs.empty() ? 1.0 : 0.0, differs);
  else
    put(metrics, "parity.scales_equal", std::numeric_limits<double>::quiet_NaN(), "a scale is not finite");
}

/// Changes what this rank reports of its values (plants_on()).
void plant(ComparedRun& run) {
  run.losses.back() *= 2.0f;
  for (float& value : run.values.output) value = -value;
  for (std::vector<float>& gradient : run.values.gradients)
    for (float& value : gradient) value *= 3.0f;
  for (std::vector<float>& weight : run.weights)
    for (float& value : weight) value += 1.0f;
  for (Stored& parameter : run.stored)
    for (std::vector<std::byte>& buffer : parameter)
      if (!buffer.empty()) buffer.front() ^= std::byte{1};
}

/// Puts the rows of the last rank, of which it has `gradients`, back to where they began: the last rows.
void plant_in_shards(Lists& weights, const Lists& began_with, const Lists& gradients) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    std::copy(began_with[i].end() - std::ssize(gradients[i]), began_with[i].end(),
              weights[i].end() - std::ssize(gradients[i]));
}

/// Compares the parameters that a rank gathers before the first step with the parameters of a model that was never
/// sharded.
void put_gathered_equals_unsharded(const CellConfig& cell, TrainingRun& fresh, const Recipe& recipe,
                                   ProcessGroup* world, bool planted, Metrics& metrics) {
  CellConfig alone = cell;
  alone.ranks = 1;
  alone.context_parallel = 1;
  alone.mesh.clear();
  alone.sharding.reset();
  alone.training.deferred_init.reset();
  alone.reshard_after_forward = true;
  alone.gather_ahead = false;
  alone.reduce_dtype.reset();
  TrainingRun unsharded(alone, Behaviors{}, recipe, {.world = world});
  const std::vector<Stored> expected = stored_parameters(unsharded);
  std::vector<Stored> seen = stored_parameters(fresh);
  if (planted)
    for (std::vector<std::byte>& buffer : seen.front())
      if (!buffer.empty()) buffer.front() ^= std::byte{1};
  std::size_t compared = 0;
  bool equal = true;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::optional<bool> same = same_bytes(seen[i], expected[i]);
    compared += same.has_value();
    equal = equal && same.value_or(true);
  }
  equal = on_all_ranks(world, equal, "gathered equals unsharded");
  if (compared == 0)
    put(metrics, "parity.gathered_equals_unsharded", std::nullopt,
        "no parameter is gathered in the form of its unsharded parameter");
  else
    put(metrics, "parity.gathered_equals_unsharded", equal ? 1.0 : 0.0);
}

double share_of(std::int64_t part, std::int64_t all) {
  return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
}

/// The casts of all ranks by tensor and step. Ranks cast the same tensors in the same order, each its own tokens.
std::vector<TensorCasts> over_ranks(ProcessGroup* world, std::vector<TensorCasts> tensors) {
  std::vector<CastCounts> mine;
  for (const TensorCasts& tensor : tensors)
    for (const auto& [step, counts] : tensor.by_step) mine.push_back(counts);
  const std::vector<CastCounts> all = of_all_ranks(world, mine, "cast counts");
  std::size_t next = 0;
  for (TensorCasts& tensor : tensors)
    for (auto& [step, counts] : tensor.by_step) {
      counts = {};
      for (std::size_t from = next; from < all.size(); from += mine.size()) counts += all[from];
      ++next;
    }
  return tensors;
}

CastSeries series_of(const TensorCasts& tensor) {
  CastSeries out;
  out.tensor = tensor.tensor;
  for (const auto& [step, counts] : tensor.by_step) {
    out.steps.push_back(step);
    out.sqnr_db.push_back(Decibels({.signal = counts.signal, .noise = counts.noise}).value);
    out.clip_fraction.push_back(share_of(counts.clipped, counts.values));
    out.underflow_fraction.push_back(share_of(counts.underflowed, counts.values));
  }
  return out;
}

/// The casts of a further run of the arm without fused quantization: only there are all values that are cast stored, so
/// that they can be counted.
CastCounter count_in_further_run(const CellConfig& cell, Arm arm, const Recipe& recipe, ProcessGroup* world) {
  CellConfig stored = cell;
  stored.training.fused_quantize = false;
  CastCounter counter;
  TrainingRun(stored, behaviors_of(cell, arm), recipe,
              {.world = world, .casts = &counter, .cast_steps = kMostCastSteps})
      .train();
  counter.finish();
  return counter;
}

/// Puts the number of values that are cast, and the fractions of clipped and underflowed ones. Metrics cover the last
/// step, series of some steps of the run. `counted` are the casts of the arm's run, or null if they were not counted.
void put_cast_counts(const CellConfig& cell, Arm arm, const Recipe& recipe, const CastCounter* counted,
                     ProcessGroup* world, ArmResult& result) {
  Metrics& metrics = result.metrics;
  CastCounts sum;
  const bool planted = plants_on(cell, arm, world);
  if (recipe.quantized) {
    const bool complete = on_all_ranks(world, counted != nullptr && !counted->missed(), "casts are counted");
    CastCounter further;
    if (!complete) further = count_in_further_run(cell, arm, recipe, world);
    std::vector<TensorCasts> mine = (complete ? *counted : further).tensors();
    for (TensorCasts& tensor : mine)
      for (auto& [step, counts] : tensor.by_step)
        if (planted) counts.clipped = counts.underflowed = counts.values;
    for (const TensorCasts& tensor : over_ranks(world, std::move(mine))) {
      result.casts.push_back(series_of(tensor));
      if (const auto last = tensor.by_step.find(cell.training.steps - 1); last != tensor.by_step.end())
        sum += last->second;
    }
  }
  const auto put_fraction = [&](const char* name, std::int64_t part) {
    if (sum.values == 0) return put(metrics, name, std::nullopt, "nothing is cast to eight bits");
    put(metrics, name, static_cast<double>(part) / static_cast<double>(sum.values));
  };
  put(metrics, "parity.values_cast", static_cast<double>(sum.values));
  put_fraction("parity.clip_fraction", sum.clipped);
  put_fraction("parity.underflow_fraction", sum.underflowed);
}

/// Puts what moved on the rank on which that is least.
void put_moved(ProcessGroup* world, const std::string& metric, const Moved& mine, Metrics& metrics) {
  const std::vector<double> all = of_all_ranks(world, std::vector{mine.fraction}, metric);
  const auto least = std::min_element(all.begin(), all.end());
  put(metrics, metric, *least, mine.fraction == *least ? mine.reason : fmt::format("of rank {}", least - all.begin()));
}

/// Puts a norm over the values of all ranks, relative to BF16's.
void put_norm_ratio(ProcessGroup* world, const std::string& metric, double bf16, double seen, Metrics& metrics) {
  double of_bf16 = 0.0, of_seen = 0.0;
  for (const double one : of_all_ranks(world, std::vector{bf16}, metric)) of_bf16 += one;
  for (const double one : of_all_ranks(world, std::vector{seen}, metric)) of_seen += one;
  const NormRatio ratio(of_seen, of_bf16);
  put(metrics, metric, ratio.value, ratio.reason);
}

/// Why no scale of the arm follows from a history, or "".
std::string why_no_history(const CellConfig& cell, Arm arm) {
  const Recipe recipe = recipe_of(cell, arm);
  const bool in_attention = recipe.attention && cell.training.fp8_attention &&
                            (cell.model.layer == "multihead_attention" || cell.model.layer == "transformer_layer");
  const bool in_products = recipe.quantized && recipe.activation.amax_source == AmaxSource::kHistory;
  return in_products || in_attention ? "" : "no scale follows from a history";
}

}  // namespace

std::string why_no_scales_in_validations(const CellConfig& cell, Arm arm) {
  if (cell.training.validation_batches == 0) return "nothing is validated";
  if (cell.training.initial_history_length > 0) return "the first forward gives histories their length";
  return why_no_history(cell, arm);
}

std::string why_no_common_scales(const CellConfig& cell, Arm arm) {
  return has_ranks(cell) ? why_no_history(cell, arm) : kNotSharded;
}

void measure_parity(const CellConfig& cell, Arm arm, TrainingRun& run, const CastCounter* counted,
                    const StepRecorder* steps, ProcessGroup* world, ArmResult& result) {
  Metrics& metrics = result.metrics;
  if (!run.device().computes()) {
    for (std::string_view name : kMetrics)
      put(metrics, std::string(name), std::nullopt, fmt::format("device '{}' computes no values", cell.device));
    return;
  }
  const Recipe recipe = recipe_of(cell, arm);
  TrainingRun::Passes once_more = passes_with_stored_weights(cell, arm, run);
  const auto finished = std::make_shared<ComparedRun>(run, true);
  const bool planted = plants_on(cell, arm, world);
  if (planted) plant(*finished);
  const std::shared_ptr<const ComparedRun> mine = finished;
  const TrainingRun::Values& values = mine->values;
  const Lists& weights = mine->weights;
  // The arm bf16 is its own baseline, if a second run has the same bits.
  std::shared_ptr<const ComparedRun> bf16;
  if (arm == Arm::kBf16 && cell.training.deterministic)
    bf16 = mine;
  else
    bf16 = compared_run(cell, Arm::kBf16, world);
  if (arm != Arm::kBefore) keep_run(cell, arm, mine, world);
  result.losses = mean_losses(world, mine->losses);
  const std::vector<double> reference = mean_losses(world, bf16->losses);
  const LossGap gap(result.losses.back(), reference.back());
  put(metrics, "parity.loss_gap", gap.value, gap.reason);
  const MeanLossGap mean_gap(result.losses, reference);
  put(metrics, "parity.mean_loss_gap", mean_gap.value, mean_gap.reason);
  put(metrics, "parity.mean_loss_gap_margin", mean_gap.margin, mean_gap.reason);
  result.validation_losses = mean_validations(world, run);
  const LossProgress progress(result.losses, result.validation_losses);
  put(metrics, "parity.loss_progress", progress.value, progress.reason);
  if (result.validation_losses.empty())
    put(metrics, "parity.validation_loss", std::nullopt, "nothing is validated");
  else
    put(metrics, "parity.validation_loss", result.validation_losses.back().loss);
  const std::vector<std::string> names = run.parameter_names(), output{"output"};
  const Lists reference_output{bf16->values.output}, own_output{values.output};
  const std::array compared{
      Compared{"parity.output_sqnr_db", "output", output, reference_output, own_output},
      Compared{"parity.grad_sqnr_db", "gradient", names, bf16->values.gradients, values.gradients},
      Compared{"parity.weight_sqnr_db", "weight", names, bf16->weights, weights}};
  for (const Compared& tensors : compared) put_sqnr(world, result, tensors);
  put_norm_ratio(world, "parity.grad_norm_ratio", squares_of(bf16->values.gradients), squares_of(values.gradients),
                 metrics);

  put_cast_counts(cell, arm, recipe, counted, world, result);

  TrainingRun fresh(cell, behaviors_of(cell, arm), recipe, {.world = world});
  const Lists began_with = fresh.weights();
  put_moved(world, "parity.weights_moved", moved(names, began_with, weights), metrics);
  // Arms that start from the same values; weights in eight bits start from their cast.
  put_norm_ratio(world, "parity.update_norm_ratio", squares_of_difference(bf16->weights, began_with),
                 squares_of_difference(weights, began_with), metrics);
  const StepRecorder nothing(0);
  measure_plain_twin(cell, arm, run, steps != nullptr ? *steps : nothing, weights, world, result);
  const std::vector<std::uint64_t> hashes = of_all_ranks(world, std::vector{hash_of(weights)}, "hashes of weights");
  result.values_hash = fmt::format(
      "{:016x}", values_hash(hashes, of_all_ranks(world, std::vector{hash_of(run.losses())}, "hashes of losses")));
  const std::string unvalidated = why_no_scales_in_validations(cell, arm);
  const bool keeps_scales = on_all_ranks(world, run.validations_keep_scales(), "validation keeps scales");
  put(metrics, "parity.validation_keeps_scales",
      unvalidated.empty() ? std::optional(keeps_scales ? 1.0 : 0.0) : std::nullopt, unvalidated);
  if (is_sharded(cell)) {
    Lists shards = weights;
    if (planted) plant_in_shards(shards, began_with, values.gradients);
    put_moved(world, "parity.shards_moved", shards_moved(names, began_with, shards, run.own_elements()), metrics);
    put_gathered_equals_unsharded(cell, fresh, recipe, world, planted, metrics);
  } else {
    for (const char* name : {"parity.shards_moved", "parity.gathered_equals_unsharded"})
      put(metrics, name, std::nullopt, kNotSharded);
  }
  if (world != nullptr) {
    put_ranks_equal(world, weights, hash_of(mine->stored), cell.expert_parallel, metrics);
    put_scales_equal(world, why_no_common_scales(cell, arm), run.scales(), planted, metrics);
  } else {
    for (const char* name : {"parity.ranks_equal", "parity.scales_equal"})
      put(metrics, name, std::nullopt, kNotSharded);
  }
  measure_same_weights(cell, arm, run, std::move(once_more), weights, world, result);

  if (arm != Arm::kBefore) {
    put(metrics, "parity.bitwise_equal", std::nullopt, "compares the arm before with the arm after");
    return;
  }
  const std::shared_ptr<const ComparedRun> fixed = compared_run(cell, Arm::kAfter, world);
  const bool equal = equal_bits(mine->losses, fixed->losses) && equal_bits(values.output, fixed->values.output) &&
                     std::ranges::equal(values.gradients, fixed->values.gradients, equal_bits) &&
                     std::ranges::equal(mine->stored, fixed->stored, [&](const Stored& a, const Stored& b) {
                       return equal_stored(a, b, recipe.weight.columnwise_is_transpose());
                     });
  const bool equal_on_all = on_all_ranks(world, equal, "bitwise equal");
  put(metrics, "parity.bitwise_equal", equal_on_all ? 1.0 : 0.0);
}

}  // namespace fp8lab
