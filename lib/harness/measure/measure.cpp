#include "harness/measure/measure.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/process_groups.h"
#include "harness/cell/median.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/parity.h"
#include "harness/measure/reference/reference.h"
#include "harness/measure/timeline.h"
#include "harness/measure/twin/equal_losses.h"
#include "harness/predict/predict.h"
#include "harness/train/training_run.h"

namespace fp8lab {
namespace {

using Metrics = std::map<std::string, MetricValue>;

bool asks_for(const CellConfig& cell, std::string_view group) {
  return std::find(cell.measure.begin(), cell.measure.end(), group) != cell.measure.end();
}

/// The last mark of that name: figures describe the last step.
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

using Figures = std::vector<std::pair<std::string, std::int64_t>>;

/// Puts each figure as the rank with the largest has it. If all ranks should have the same, and rank 0 has the largest,
/// puts it as the rank with the smallest has it. A note names a rank other than 0. Collective. `may_differ`: by name,
/// figures that are put as rank 0 has them. `may_be_less`: other ranks' figures may be smaller.
void put_of_all_ranks(const Figures& figures, const std::function<bool(const std::string&)>& may_differ,
                      bool may_be_less, ProcessGroup* world, ArmResult& result) {
  std::vector<std::int64_t> mine;
  for (const auto& [name, figure] : figures) mine.push_back(figure);
  const std::vector<std::int64_t> all = of_all_ranks(world, mine, "figures of ranks");
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const std::string& name = figures[i].first;
    std::size_t largest = i, smallest = i;
    for (std::size_t j = i; j < all.size() && !may_differ(name); j += mine.size()) {
      if (all[j] > all[largest]) largest = j;
      if (all[j] < all[smallest]) smallest = j;
    }
    const std::size_t shown = !may_be_less && largest == i ? smallest : largest;
    put(result.metrics, name, static_cast<double>(all[shown]));
    if (shown != i)
      result.notes.push_back(
          fmt::format("{}: {} on rank {}, {} on rank 0", name, all[shown], shown / mine.size(), all[i]));
  }
}

/// Puts figures of memory: no rank has larger shards than rank 0. Collective.
void put_memory(TrainingRun& run, const Figures& figures, ProcessGroup* world, ArmResult& result) {
  std::vector<std::int64_t> own;
  for (const ElementRange& range : run.own_elements()) own.push_back(range.end - range.begin);
  const std::vector<std::int64_t> elements = of_all_ranks(world, own, "elements of shards");
  bool even = true;
  for (std::size_t i = 0; i < elements.size(); ++i) even = even && elements[i] == elements[i % own.size()];
  // A rank with fewer rows than rank 0 makes padded copies of its shards. Blocks of other sizes fit into segments in
  // another way.
  const auto may_differ = [&](const std::string& name) {
    return name.starts_with("memory.reserved_") || (!even && name == "memory.setup_peak_bytes");
  };
  put_of_all_ranks(figures, may_differ, !even, world, result);
}

void measure_memory(TrainingRun& run, ProcessGroup* world, ArmResult& result) {
  const Ledger& ledger = run.device().ledger();
  const LedgerMark& after_forward = last_mark(ledger, "end_of_forward");
  const LedgerMark& after_backward = last_mark(ledger, "end_of_backward");
  const LedgerMark& after_step = last_mark(ledger, "end_of_step");
  Metrics& metrics = result.metrics;
  Figures figures;
  const auto put_bytes = [&](const std::string& name, std::int64_t bytes) { figures.emplace_back(name, bytes); };
  put_bytes("memory.peak_bytes", ledger.peak_bytes());
  put_bytes("memory.setup_peak_bytes", ledger.peak_bytes(PhaseKind::kSetup));
  put_bytes("memory.forward_peak_bytes", ledger.peak_bytes(PhaseKind::kForward));
  put_bytes("memory.optimizer_peak_bytes", ledger.peak_bytes(PhaseKind::kOptimizer));
  put_bytes("memory.reserved_peak_bytes", run.device().memory().allocator().reserved_peak_bytes());
  const std::optional<std::int64_t> growth = run.reserved_growth_bytes();
  put(metrics, "memory.reserved_growth_bytes", growth, growth ? "" : "needs three steps");
  // The driver reports the memory of all processes, so this is measured only in cells that run alone.
  if (any_group(run.cell().measure, &MetricGroup::alone))
    if (const auto overhead = run.device().driver_overhead_bytes())
      put(metrics, "memory.driver_overhead_bytes", static_cast<double>(*overhead));
  put_bytes("memory.end_of_forward_bytes", after_forward.live_bytes);
  put_bytes("memory.end_of_backward_bytes", after_backward.live_bytes);
  put_bytes("memory.end_of_step_bytes", after_step.live_bytes);
  put_bytes("memory.weight_bytes", after_step.by_kind.at(std::string(name(HolderKind::kParameter))));
  put_bytes("memory.host_copies_peak_bytes", run.device().memory().host_copies().peak_bytes());
  put_bytes("memory.retained_bytes", after_backward.retained_bytes);
  put_bytes("memory.unbalanced_bytes", unbalanced_bytes(ledger));
  const auto put_kinds = [&](const char* family, const std::map<std::string, std::int64_t>& by_kind) {
    for (const auto& [kind, bytes] : by_kind) put_bytes(family + snake_case(kind), bytes);
  };
  put_kinds("memory.forward_by_holder.", after_forward.by_kind);
  put_kinds("memory.by_holder.", after_backward.by_kind);
  put_memory(run, figures, world, result);
  result.retained_by_holder = after_backward.retained_by_holder;
  result.peak_by_holder = ledger.peak_by_holder();
  result.sequence_hash = fmt::format("{:016x}", ledger.sequence_hash());
}

void add_predictions(const CellConfig& cell, Arm arm, Metrics& metrics) {
  const std::map<std::string, double> figures = predict(cell, arm);
  const double unexplained = put_predictions(figures, metrics);
  if (!asks_for(cell, "memory")) return;
  if (figures.empty())
    put(metrics, "memory.unexplained_bytes", std::nullopt, "this cell has no closed form");
  else
    put(metrics, "memory.unexplained_bytes", unexplained);
}

/// The operations that the modelled GPU would have to emulate, or "". Not the operations of the host, which multiplies
/// dequantized operands always.
std::string emulation(const Recipe& recipe, const ArchProfile& arch) {
  const bool microscaled = recipe.quantized && recipe.weight.scale_dtype() == DType::kE8M0;
  if (!microscaled || arch.mxfp8_gemm) return {};
  return fmt::format(
      "'{}' has no MXFP8 products: they are made from exactly dequantized operands, which no figure of memory counts",
      arch.name);
}

/// At most `most` of the values, at evenly spaced positions, the first and the last among them.
template <class T>
std::vector<T> spaced(std::vector<T> values, std::size_t most) {
  if (values.size() <= most) return values;
  std::vector<T> out;
  for (std::size_t i = 0; i < most; ++i) out.push_back(values[i * (values.size() - 1) / (most - 1)]);
  return out;
}

std::vector<double> thinned(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return spaced(std::move(samples), kMostSamples);
}

constexpr const char* kNeedsTwoSteps = "needs two steps: the first one warms up";

/// Measures every timed step except the first.
void measure_time(const TrainingRun& run, ArmResult& result) {
  const auto put_part = [&](const char* name, double StepTimes::* part) {
    std::vector<double> samples;
    for (std::size_t step = 1; step < run.times().size(); ++step) samples.push_back(run.times()[step].*part);
    if (samples.empty()) return put(result.metrics, name, std::nullopt, kNeedsTwoSteps);
    put(result.metrics, name, median(samples));
    result.samples[name] = thinned(std::move(samples));
  };
  put_part("time.step_ms", &StepTimes::step_ms);
  put_part("time.forward_ms", &StepTimes::forward_ms);
  put_part("time.backward_ms", &StepTimes::backward_ms);
  put_part("time.optimizer_ms", &StepTimes::optimizer_ms);
}

void measure_traffic(const TrainingRun& run, ProcessGroup* world, ArmResult& result) {
  const Traffic* traffic = run.last_step_traffic();
  Figures figures;
  const auto put_figure = [&](const char* name, std::int64_t figure) {
    if (traffic)
      figures.emplace_back(name, figure);
    else
      put(result.metrics, name, std::nullopt, kNotSharded);
  };
  const Traffic of = traffic ? *traffic : Traffic{};
  const auto bytes = [&](CollectiveKind kind) { return of.of(kind).payload_bytes + of.of(kind).scale_bytes; };
  std::int64_t collectives = 0;
  for (std::size_t kind = 0; kind < kCollectiveKinds; ++kind)
    collectives += of.of(static_cast<CollectiveKind>(kind)).collectives;
  put_figure("traffic.all_gather_bytes", bytes(CollectiveKind::kAllGather));
  put_figure("traffic.all_gather_payload_bytes", of.of(CollectiveKind::kAllGather).payload_bytes);
  put_figure("traffic.all_gather_scale_bytes", of.of(CollectiveKind::kAllGather).scale_bytes);
  put_figure("traffic.reduce_scatter_bytes", bytes(CollectiveKind::kReduceScatter));
  put_figure("traffic.all_reduce_bytes", bytes(CollectiveKind::kAllReduce));
  put_figure("traffic.ring_exchange_bytes", bytes(CollectiveKind::kRingExchange));
  put_figure("traffic.all_to_all_bytes", bytes(CollectiveKind::kAllToAll));
  put_figure("traffic.all_to_all_scale_bytes", of.of(CollectiveKind::kAllToAll).scale_bytes);
  put_figure("traffic.collectives", collectives);
  // Every rank counts the full arrays of the collectives in which it is.
  put_of_all_ranks(figures, [](const std::string&) { return false; }, false, world, result);
}

void measure_host(const CellConfig& cell, const TrainingRun& run, ArmResult& result) {
  Metrics& metrics = result.metrics;
  const std::vector<PreForwardSample> samples = run.host_work();
  const std::string reason = !samples.empty() ? "" : !is_sharded(cell) ? kNotSharded : kNeedsTwoSteps;
  if (!samples.empty()) {
    std::vector<double> nanoseconds;
    for (const PreForwardSample& sample : samples) nanoseconds.push_back(static_cast<double>(sample.nanoseconds));
    result.samples["host.pre_forward_ns"] = thinned(std::move(nanoseconds));
  }
  // Medians, because a layer whose bookkeeping just outgrew its buffer allocates more than in the steady state.
  const auto put_median = [&](const char* name, std::int64_t PreForwardSample::* part) {
    std::vector<double> values;
    for (const PreForwardSample& sample : samples) values.push_back(static_cast<double>(sample.*part));
    put(metrics, name, values.empty() ? std::nullopt : std::optional(median(values)), reason);
  };
  put_median("host.pre_forward_ns", &PreForwardSample::nanoseconds);
  put_median("host.pre_forward_allocations", &PreForwardSample::heap_allocations);
  put_median("host.pre_forward_quantizer_copies", &PreForwardSample::quantizer_copies);
  put(metrics, "host.fusion_plans", static_cast<double>(run.last_step_fusion_plans()));
}

/// True if the casts of the arm's run can be counted while it runs: no time is measured, and what is cast is stored, or
/// may be because no memory is measured.
bool counts_casts(const CellConfig& cell, const Recipe& recipe) {
  const bool knows_scales = recipe.activation.amax_source == AmaxSource::kHistory;
  const bool stores = !(knows_scales && cell.training.fused_quantize) || !asks_for(cell, "memory");
  return recipe.quantized && stores && !any_group(cell.measure, &MetricGroup::alone);
}

/// The timeout of ranks as a fraction of the arm's limit: below 1, so that a rank that waits for another without result
/// reports which one before the arm is killed.
constexpr double kShareOfTheLimit = 0.8;

}  // namespace

double put_predictions(const std::map<std::string, double>& figures, std::map<std::string, MetricValue>& metrics) {
  double unexplained = 0.0;
  for (const auto& [name, predicted] : figures) {
    const auto found = metrics.find(name);
    if (found == metrics.end() || !found->second.value) continue;
    found->second.predicted = predicted;
    if (!name.starts_with("memory.")) continue;
    unexplained = std::max(unexplained, std::abs(*found->second.value - predicted));
    put(metrics, "memory.predicted_" + name.substr(name.find('.') + 1), predicted);
  }
  return unexplained;
}

ArmResult measure_arm_on_rank(const CellConfig& cell, Arm arm, ProcessGroup* world) {
  const Recipe recipe = recipe_of(cell, arm);
  const bool memory = asks_for(cell, "memory");
  const bool planted = cell.control == Control::kPlanted && arm == Arm::kBefore;
  const bool traffic = asks_for(cell, "traffic"), parity = asks_for(cell, "parity");
  CastCounter casts(!memory);
  const bool counts = parity && counts_casts(cell, recipe);
  std::optional<StepRecorder> steps;
  if (parity && why_no_plain_twin(cell, arm).empty()) steps.emplace(plain_twin(cell, arm).steps);
  TrainingRun run(cell, behaviors_of(cell, arm), recipe,
                  {.world = world,
                   .record_timeline = memory,
                   .planted = planted,
                   .casts = counts ? &casts : nullptr,
                   .cast_steps = kMostCastSteps,
                   .watch = steps ? &*steps : nullptr});
  run.keep_values(parity);
  if (asks_for(cell, "host")) run.measure_host_work();
  run.train();
  casts.finish();

  ArmResult result;
  result.emulated = emulation(recipe, run.device().arch());
  result.notes = run.warnings();
  for (std::string& note : run.device().notes()) result.notes.push_back(std::move(note));
  if (cell.training.fp8_sums == Fp8Sums::kTensorCore && cell.device == "cuda")
    result.notes.emplace_back("fp8_sums: this GPU's tensor cores sum FP8 products, with or without it");
  // Groups of a device of shapes only move no data.
  ProcessGroup* const ranks = has_ranks(cell) && run.device().computes() ? world : nullptr;
  if (memory) {
    measure_memory(run, ranks, result);
    result.timeline_json = timeline_json(run.device().ledger());
  }
  if (traffic) measure_traffic(run, ranks, result);
  if (asks_for(cell, "host")) measure_host(cell, run, result);
  if (asks_for(cell, "time")) measure_time(run, result);
  if (memory || traffic) add_predictions(cell, arm, result.metrics);
  // Runs that the arm is only compared with are no part of the cell, so they may take all memory of the device.
  CellConfig compared = cell;
  compared.capacity = 0;
  if (asks_for(cell, "twin")) measure_twin(compared, arm, run, has_ranks(cell) ? world : nullptr, result);
  if (steps && plants_on(cell, arm, world)) steps->plant();
  if (parity)
    measure_parity(compared, arm, run, counts ? &casts : nullptr, steps ? &*steps : nullptr,
                   has_ranks(cell) ? world : nullptr, result);
  if (asks_for(cell, "reference")) measure_reference(compared, arm, has_ranks(cell) ? world : nullptr, result);
  result.losses = spaced(std::move(result.losses), kMostLosses);
  result.validation_losses = spaced(std::move(result.validation_losses), kMostLosses);
  return result;
}

void start_ranks_here(const CellConfig& cell, const RankFunction& rank_function) {
  const bool computes = open_device(cell.device, {.arch = cell.arch, .memory = {}})->computes();
  RunOptions options{.ranks = cell.ranks};
  if (cell.timeout_s > 0.0)
    options.timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(kShareOfTheLimit * cell.timeout_s * 1e9));
  run_ranks(computes ? "in_process" : "simulated", options, rank_function);
}

ArmResult measure_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm) {
  if (!has_ranks(cell)) return measure_arm_on_rank(cell, arm, nullptr);
  std::mutex mutex;
  std::optional<ArmResult> lowest;
  int rank_of_lowest = cell.ranks;
  start(cell, [&](ProcessGroup& world) {
    ArmResult result = measure_arm_on_rank(cell, arm, &world);
    const std::lock_guard lock(mutex);
    if (world.rank() >= rank_of_lowest) return;
    rank_of_lowest = world.rank();
    lowest = std::move(result);
  });
  check(lowest.has_value(), "no rank was started in this process");
  return std::move(*lowest);
}

ArmResult measure_arm(const CellConfig& cell, Arm arm) { return measure_arm_over(start_ranks_here, cell, arm); }

}  // namespace fp8lab
