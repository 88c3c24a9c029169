#include "harness/measure.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "fixes/fixes.h"
#include "harness/metrics.h"
#include "harness/predict.h"
#include "harness/timeline.h"
#include "harness/training_run.h"

namespace fp8lab {
namespace {

using Metrics = std::map<std::string, MetricValue>;

bool asks_for(const CellConfig& cell, std::string_view group) {
  return std::find(cell.measure.begin(), cell.measure.end(), group) != cell.measure.end();
}

void put(Metrics& metrics, const std::string& name, std::optional<double> value, std::string reason = {}) {
  const Metric* row = find_metric(name);
  metrics[name] = {
      .value = value, .predicted = {}, .unit = row ? std::string(row->unit) : "1", .reason = std::move(reason)};
}

Behaviors behaviors_of(const CellConfig& cell, Arm arm) {
  if (arm != Arm::kBefore || cell.fix.empty()) return {};
  const std::array<std::string_view, 1> reverted{cell.fix};
  return behaviors_without(reverted);
}

Recipe recipe_of(const CellConfig& cell, Arm arm) {
  if (arm == Arm::kBf16) return make_recipe("bf16");
  return make_recipe(cell.training.recipe, cell.training.recipe_options);
}

// The last mark of that name: figures are the last step's.
const LedgerMark& last_mark(const Ledger& ledger, std::string_view name) {
  const auto found = std::find_if(ledger.marks().rbegin(), ledger.marks().rend(),
                                  [&](const LedgerMark& mark) { return mark.name == name; });
  return *found;
}

std::string snake_case(std::string_view text) {
  std::string snake(text);
  std::replace(snake.begin(), snake.end(), ' ', '_');
  return snake;
}

void measure_memory(const CellConfig& cell, Arm arm, TrainingRun& run, ArmResult& result) {
  const Ledger& ledger = run.device().ledger();
  const LedgerMark& after_backward = last_mark(ledger, "end_of_backward");
  Metrics& metrics = result.metrics;
  put(metrics, "memory.peak_bytes", static_cast<double>(ledger.peak_bytes()));
  put(metrics, "memory.reserved_peak_bytes",
      static_cast<double>(run.device().memory().allocator().reserved_peak_bytes()));
  put(metrics, "memory.end_of_forward_bytes", static_cast<double>(last_mark(ledger, "end_of_forward").live_bytes));
  put(metrics, "memory.end_of_backward_bytes", static_cast<double>(after_backward.live_bytes));
  put(metrics, "memory.end_of_step_bytes", static_cast<double>(last_mark(ledger, "end_of_step").live_bytes));
  put(metrics, "memory.retained_bytes", static_cast<double>(after_backward.retained_bytes));
  for (const auto& [kind, bytes] : after_backward.by_kind)
    put(metrics, "memory.by_holder." + snake_case(kind), static_cast<double>(bytes));
  result.retained_by_holder = after_backward.retained_by_holder;
  result.peak_by_holder = ledger.peak_by_holder();
  result.sequence_hash = fmt::format("{:016x}", ledger.sequence_hash());

  double unexplained = 0.0;
  const std::map<std::string, double> figures = predict(cell, arm);
  for (const auto& [name, predicted] : figures) {
    const auto found = metrics.find(name);
    if (found == metrics.end()) continue;
    found->second.predicted = predicted;
    put(metrics, "memory.predicted_" + name.substr(name.find('.') + 1), predicted);
    unexplained = std::max(unexplained, std::abs(*found->second.value - predicted));
  }
  if (figures.empty())
    put(metrics, "memory.unexplained_bytes", std::nullopt, "this cell has no closed form");
  else
    put(metrics, "memory.unexplained_bytes", unexplained);
}

// The host multiplies dequantized operands in any case; this names what the modelled card would have to emulate too.
std::string emulation(const Recipe& recipe, const ArchProfile& arch) {
  const bool microscaled = recipe.quantized && recipe.weight.scale_dtype() == DType::kE8M0;
  if (!microscaled || arch.mxfp8_gemm) return {};
  return fmt::format("'{}' has no MXFP8 products: they are made from exactly dequantized operands", arch.name);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

void measure_time(const TrainingRun& run, Metrics& metrics) {
  const auto of = [&](double StepTimes::*part) {
    std::vector<double> samples;
    for (const StepTimes& times : run.times()) samples.push_back(times.*part);
    return median(std::move(samples));
  };
  put(metrics, "time.step_ms", of(&StepTimes::step_ms));
  put(metrics, "time.forward_ms", of(&StepTimes::forward_ms));
  put(metrics, "time.backward_ms", of(&StepTimes::backward_ms));
  put(metrics, "time.optimizer_ms", of(&StepTimes::optimizer_ms));
}

// 20 log10(|reference| / |reference - value|). Equal values have no noise: absent rather than infinite.
std::optional<double> sqnr_db(const std::vector<std::vector<float>>& reference,
                              const std::vector<std::vector<float>>& values) {
  double signal = 0.0, noise = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    for (std::size_t j = 0; j < reference[i].size(); ++j) {
      const double r = reference[i][j], d = r - values[i][j];
      signal += r * r;
      noise += d * d;
    }
  }
  if (noise == 0.0) return std::nullopt;
  const double db = 10.0 * std::log10(signal / noise);
  return std::isfinite(db) ? std::optional<double>(db) : std::nullopt;
}

void put_sqnr(Metrics& metrics, const std::string& name, const std::vector<std::vector<float>>& reference,
              const std::vector<std::vector<float>>& values) {
  const auto db = sqnr_db(reference, values);
  put(metrics, name, db,
      db                    ? ""
      : reference == values ? "equal to BF16 bit for bit: no noise"
                            : "a value is not finite");
}

double fraction_moved(const TrainingRun::Values& values) {
  std::size_t moved = 0;
  for (std::size_t i = 0; i < values.weights.size(); ++i) moved += values.weights[i] != values.initial_weights[i];
  return values.weights.empty() ? 0.0 : static_cast<double>(moved) / static_cast<double>(values.weights.size());
}

constexpr std::string_view kParityMetrics[] = {"parity.loss_gap",      "parity.output_sqnr_db",
                                               "parity.grad_sqnr_db",  "parity.weight_sqnr_db",
                                               "parity.weights_moved", "parity.bitwise_equal"};

void measure_parity(const CellConfig& cell, Arm arm, TrainingRun& run, Metrics& metrics) {
  if (!run.device().computes()) {
    for (std::string_view name : kParityMetrics)
      put(metrics, std::string(name), std::nullopt, fmt::format("device '{}' computes no values", cell.device));
    return;
  }
  const TrainingRun::Values& values = run.values();
  TrainingRun baseline(cell, Behaviors{}, make_recipe("bf16"));
  baseline.keep_values(true);
  baseline.run();
  const double reference = baseline.losses().back(), loss = run.losses().back();
  const double gap = std::abs(loss - reference) / std::abs(reference);
  const bool finite = std::isfinite(gap);
  put(metrics, "parity.loss_gap", finite ? std::optional(gap) : std::nullopt, finite ? "" : "a loss is not finite");
  put_sqnr(metrics, "parity.output_sqnr_db", {baseline.values().output}, {values.output});
  put_sqnr(metrics, "parity.grad_sqnr_db", baseline.values().gradients, values.gradients);
  put_sqnr(metrics, "parity.weight_sqnr_db", baseline.values().weights, values.weights);
  put(metrics, "parity.weights_moved", fraction_moved(values));

  if (arm != Arm::kBefore) {
    put(metrics, "parity.bitwise_equal", std::nullopt, "compares the arm before with the arm after");
    return;
  }
  TrainingRun fixed(cell, Behaviors{}, recipe_of(cell, Arm::kAfter));
  fixed.keep_values(true);
  fixed.run();
  const TrainingRun::Values& other = fixed.values();
  const bool equal = run.losses() == fixed.losses() && values.output == other.output &&
                     values.gradients == other.gradients && values.weights == other.weights;
  put(metrics, "parity.bitwise_equal", equal ? 1.0 : 0.0);
}

}  // namespace

ArmResult measure_arm(const CellConfig& cell, Arm arm) {
  const Recipe recipe = recipe_of(cell, arm);
  TrainingRun run(cell, behaviors_of(cell, arm), recipe);
  const bool memory = asks_for(cell, "memory"), parity = asks_for(cell, "parity");
  run.keep_values(parity);
  run.device().ledger().record_timeline(memory);
  run.run();

  ArmResult result;
  result.emulated = emulation(recipe, run.device().arch());
  if (memory) {
    measure_memory(cell, arm, run, result);
    result.timeline_json = timeline_json(run.device().ledger());
  }
  if (asks_for(cell, "time")) measure_time(run, result.metrics);
  if (parity) measure_parity(cell, arm, run, result.metrics);
  return result;
}

}  // namespace fp8lab
