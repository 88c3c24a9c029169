#include "harness/cli/plan/plan_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/results/compare/compare.h"
#include "harness/results/results.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPeakMetric = "memory.peak_bytes";

bool is_result_set(const fs::path& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) return path.filename() == "results.json" || path.filename() == "results.json.gz";
  return std::ranges::any_of(std::array{"results.json", "results.json.gz", "results.jsonl"},
                             [&](const char* file) { return fs::exists(path / file, none); });
}

/// The arm's figures that a prediction has, too.
void add_measured(const ArmResults& arms, PlannedArm& planned) {
  const auto arm = arms.find(planned.arm);
  if (arm == arms.end()) return;
  for (const auto& [name, metric] : arm->second.metrics) {
    const bool is_predicted = planned.estimate.figures.empty()
                                  ? name.starts_with("memory.") && !name.starts_with("memory.predicted_")
                                  : planned.estimate.figures.contains(name);
    if (metric.value && is_predicted) planned.measured[name] = *metric.value;
  }
}

/// True if what was asked for is another mesh or another device than the program's.
bool is_replaced(const std::string& setting, const PlanRequest& asked) {
  return (setting.starts_with("mesh=") && !asked.ranks.empty()) ||
         (setting.starts_with("device=") && !asked.gpu.empty());
}

/// "predicted 75.4 MiB, measured 80.5 MiB (-6.3 %)"
std::string beside(const PlannedArm& arm) {
  const auto predicted = arm.estimate.figures.find(kPeakMetric);
  const auto measured = arm.measured.find(kPeakMetric);
  if (predicted == arm.estimate.figures.end() || measured == arm.measured.end()) return "";
  return fmt::format("predicted {}, measured {} ({:+.1f} %)", short_figure(predicted->second, "B"),
                     short_figure(measured->second, "B"), 100.0 * (predicted->second / measured->second - 1.0));
}

std::optional<double> measured_peak(const CellRecord& record) {
  const auto arm = record.arms.find(Arm::kAfter);
  if (arm == record.arms.end()) return std::nullopt;
  const auto peak = arm->second.metrics.find(kPeakMetric);
  return peak == arm->second.metrics.end() ? std::nullopt : peak->second.value;
}

}  // namespace

std::optional<StoredRun> run_in(const std::vector<std::string>& paths) {
  if (std::ranges::none_of(paths, [](const std::string& path) { return is_result_set(path); })) return std::nullopt;
  if (paths.size() > 1) fail("plan: give one result set, or scenario files");
  return load_run(paths.front());
}

bool is_watched(const StoredRun& run) {
  return run.cells.size() == 1 && is_script(run.cells.front().config) && run.cells.front().config.script.path.empty();
}

std::string model_file_of(const std::string& results) {
  std::error_code none;
  const fs::path folder = fs::is_directory(results, none) ? fs::path(results) : fs::path(results).parent_path();
  const fs::path file = folder / kModelFile;
  if (!fs::exists(file, none))
    fail(
        fmt::format("plan: {}: no such file: no step of the watched program ended, or an earlier fp8lab watched it; "
                    "watch it again",
                    file.string()));
  return file.string();
}

PlanRequest request_of(const PlanRequest& asked, const CellRecord& record, const WatchedModel& model) {
  PlanRequest out = asked;
  const std::string file = model_file_of(asked.selection.paths.front());
  if (out.model.empty()) {
    if (!model.unknown.empty())
      fail(fmt::format("plan: {}: {}; name its model by --model, a known one or a config.json", file, model.unknown));
    out.model = file;
  }
  if (out.as.empty()) out.as = TorchMemory::newest();
  if (out.recipes.empty()) out.recipes = {"bf16"};
  out.settings.clear();
  for (const std::string& setting : model.settings)
    if (!is_replaced(setting, asked)) out.settings.push_back(setting);
  if (record.config.training.steps == 1) out.settings.emplace_back("training.steps=1");  // without an optimizer's state
  out.settings.insert(out.settings.end(), asked.settings.begin(), asked.settings.end());
  if (out.ranks.empty()) out.ranks = {record.config.ranks};
  return out;
}

std::string watched_text(const CellRecord& record, const WatchedModel& model, const std::vector<Planned>& plans) {
  const CellConfig& cell = record.config;
  std::string out =
      fmt::format("{}: {}, watched for {} over {} on {}\n", for_terminal(cell.scenario), for_terminal(model.name),
                  counted(static_cast<std::size_t>(cell.training.steps), "step"),
                  counted(static_cast<std::size_t>(cell.ranks), "rank"), cell.device);
  std::string peaks;
  for (const Planned& plan : plans)
    if (const std::string text = beside(plan.arms.front()); !text.empty())
      peaks += fmt::format("  peak      {} {}\n", plan.library, text);
  if (const auto peak = measured_peak(record); peaks.empty() && peak)
    peaks = fmt::format("  peak      measured {}; the rows below have other keys, ranks, another device or no figure\n",
                        short_figure(*peak, "B"));
  out += peaks;
  for (const std::string& one : model.differs) out += fmt::format("  differs   {}\n", for_terminal(one));
  return out + "\n";
}

std::vector<PlannedCell> cells_of(const StoredRun& run) {
  std::vector<PlannedCell> out;
  for (const CellRecord& record : run.cells) {
    PlannedCell cell;
    cell.config = record.config;
    cell.file = record.file;
    cell.line = record.line;
    cell.title = record.title;
    out.push_back(std::move(cell));
  }
  return out;
}

void add_measured(const StoredRun& run, Planned& plan) {
  const auto record =
      std::ranges::find(run.cells, plan.cell.config.id, [](const CellRecord& one) { return one.config.id; });
  for (PlannedArm& arm : plan.arms) add_measured(record->arms, arm);
}

void add_measured(const CellRecord& record, const PlanRequest& asked, Planned& plan) {
  const CellConfig& cell = plan.cell.config;
  const bool same_device = (cell.device == "cpu") == (record.config.device == "cpu");
  const bool is_changed = !asked.settings.empty() || !asked.model.empty();
  if (cell.ranks == record.config.ranks && same_device && !is_changed) add_measured(record.arms, plan.arms.front());
}

}  // namespace fp8lab
