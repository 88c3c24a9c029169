#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cli/listing.h"
#include "harness/cli/program.h"
#include "harness/cli/run/judged_run.h"
#include "harness/cli/run/run_job.h"
#include "harness/cli/run/tiers.h"
#include "harness/cli/selection.h"
#include "harness/run/launched_runner.h"
#include "harness/run/limits.h"
#include "harness/scenario/controls.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {
namespace {

RunnerOptions runner_options(const RunRequest& request, const Program& program) {
  RunnerOptions options;
  options.jobs = request.jobs > 0 ? request.jobs : usable_cores();
  options.libraries_share_gpus = request.jobs > 0;
  options.timeout_s = request.timeout_s;
  options.predict = program.predict;
  options.worker_command = [subjects = Subjects(program.worker_directory)](const CellConfig& cell, Arm arm) {
    return subjects.command(cell, arm);
  };
  if (!request.isolate) options.task = program.task;
  options.isolate = request.isolate;
  options.processes = request.processes;
  return options;
}

/// Runs cells over ranks that a launcher started; this process is one of them.
int run_launched(const LaunchedRanks& ranks, const RunRequest& request, const Program& program, RunJob& job,
                 const std::vector<PlannedCell>& cells, std::set<std::string> entire) {
  const RunnerOptions options = runner_options(request, program);
  LaunchedRunner runner(ranks, cells, program.vocabulary(), program.measure_over);
  if (ranks.is_head()) {
    std::FILE* text = request.json ? stderr : stdout;
    std::fprintf(text, "%s\n", ranks.describe().c_str());
    std::fflush(text);  // now, because this rank may wait minutes for the others
  }
  try {
    const int signal = runner.connect(options);
    if (signal != 0) return exit_code({.verdicts = {}, .interrupted_by = signal});
    if (!ranks.is_head()) return runner.follow(options);
  } catch (const RanksLost& error) {
    report_error(fmt::format("on rank {}: {}", ranks.rank(), error.what()));
    return exit_code({.verdicts = {}, .ranks_lost = true});
  }
  int code = exit_code({.verdicts = {}, .bad_usage = true});
  try {
    code = run_and_judge(request, options, program, job, cells, std::move(entire),
                         [&](const auto&... arguments) { return runner.run(arguments...); });
  } catch (...) {
    runner.dismiss(code);
    throw;
  }
  std::fflush(nullptr);  // now, because a signal may end this process while it waits for the others
  runner.dismiss(code);
  return code;
}

std::map<std::string, std::size_t> cells_of_scenarios(const std::vector<PlannedCell>& cells) {
  std::map<std::string, std::size_t> counts;
  for (const PlannedCell& cell : cells) ++counts[cell.config.scenario];
  return counts;
}

/// Adds the gate of --gate-time to every cell that measures steps before and after a fix; false if there is none.
bool add_time_gate(std::vector<PlannedCell>& cells, double percent, const Vocabulary& vocabulary) {
  Expectation gate;
  gate.metric = "time.step_ms";
  gate.comparison = Comparison::kAtMost;
  gate.of = Arm::kBefore;
  gate.factor = 1 + percent / 100;
  bool any = false;
  for (PlannedCell& cell : cells) {
    if (std::ranges::find(cell.config.measure, find_metric(gate.metric)->group()) == cell.config.measure.end())
      continue;
    if (cell.config.control != Control::kNone) continue;  // it gates its time already
    const std::vector<Arm> arms = arms_of(cell, vocabulary);
    if (std::ranges::find(arms, Arm::kBefore) == arms.end()) continue;
    cell.expect.push_back(gate);
    any = true;
  }
  return any;
}

int run_selected(const RunRequest& request, const Program& program, const std::optional<LaunchedRanks>& ranks,
                 RunJob& job) {
  Vocabulary vocabulary = program.vocabulary();
  // Every launched rank is a process of its own.
  if (ranks) vocabulary.max_ranks = [](std::string_view) { return std::int64_t{kMostRanks}; };
  if (ranks && (request.processes > 0 || request.gate_time))
    fail("--processes and --gate-time need ranks that this program starts; start it without a launcher");
  if (ranks && !program.measure_over) fail("this program runs only as one process; start it without a launcher");
  const bool speaks = !ranks || ranks->is_head();
  // Every rank reports its own errors, because its files may differ. It then ends before the ranks connect, so that no
  // rank waits for it.
  const auto tell = [&](const std::string& error) {
    report_error(speaks ? error : fmt::format("on rank {}: {}", ranks->rank(), error));
    job.add_error(error);
  };
  check_devices(request.devices, vocabulary);
  LoadedScenarios loaded = load_scenarios(find_scenario_files(request.paths), vocabulary);
  const std::vector<std::string> devices = devices_of(loaded.cells);
  const std::map<std::string, std::size_t> all = cells_of_scenarios(loaded.cells);
  if (loaded.errors.empty()) select_cells(loaded.cells, request, vocabulary);
  std::set<std::string> entire;
  for (const auto& [scenario, cells] : cells_of_scenarios(loaded.cells))
    if (all.at(scenario) == cells) entire.insert(scenario);
  if (loaded.errors.empty() && (request.controls || request.gate_time)) {
    std::vector<PlannedCell> tested = loaded.cells;
    const auto measures_no_time = [](const PlannedCell& cell) {
      return std::ranges::find(cell.config.measure, "time") == cell.config.measure.end();
    };
    if (!request.controls) std::erase_if(tested, measures_no_time);
    for (PlannedCell& cell : control_cells(tested, request.gate_time.has_value()))
      loaded.cells.push_back(std::move(cell));
  }
  if (loaded.errors.empty() && request.gate_time && !loaded.cells.empty())
    if (!add_time_gate(loaded.cells, *request.gate_time, vocabulary)) {
      const std::string none =
          "--gate-time: no selected cell measures time before and after a fix; add `time` to `measure` of a scenario "
          "with a `fix`";
      check(request.controls, none);
      if (speaks) std::fputs(fmt::format("fp8lab: {}\n", none).c_str(), stderr);  // the controls test the rest
    }
  if (loaded.errors.empty() && !ranks) {
    Subjects subjects(program.worker_directory);
    if (request.list || request.dry_run)
      subjects.skip_missing(loaded.cells, vocabulary);
    else
      subjects.skip_impossible(loaded.cells, vocabulary);
  }
  if (loaded.errors.empty() && ranks) {
    try {
      fit_to_launch(loaded.cells, loaded.scenarios, *ranks);
    } catch (const ScenarioError& error) {
      loaded.errors.push_back(error);
    }
  }
  if (!loaded.errors.empty()) {
    for (const ScenarioError& error : loaded.errors) tell(error.what());
    return job.publish_no_results(exit_code({.verdicts = {}, .bad_usage = true}));
  }
  if (request.list || request.dry_run) {
    const ListingOptions options{.details = request.dry_run, .json = request.json};
    if (speaks) {
      std::fputs(listing(loaded.cells, vocabulary, options).c_str(), stdout);
      std::fflush(stdout);  // the notes come last also if both streams are one file
      std::fputs(code_notes(loaded.cells).c_str(), stderr);
    }
    if (!loaded.cells.empty()) return 0;
  }
  if (loaded.cells.empty()) {
    tell(nothing_matches(request, devices, vocabulary));
    return job.publish_no_results(exit_code({}));
  }
  if (const std::string later = foreseen(loaded.cells, false); speaks && !later.empty())
    std::fputs(later.c_str(), stderr);
  if (ranks) return run_launched(*ranks, request, program, job, loaded.cells, std::move(entire));
  const RunnerOptions options = runner_options(request, program);
  need_descriptors(descriptors_needed(loaded.cells, options.jobs), "run fewer arms at a time (--jobs)");
  SignalWatch& watch = SignalWatch::until_exit();  // a second signal kills the children, not the writing of results
  return run_and_judge(request, options, program, job, loaded.cells, std::move(entire),
                       [&](const auto&... arguments) { return run_cells(arguments..., watch); });
}

}  // namespace

int run_command(RunRequest request, const Program& program) {
  const std::optional<LaunchedRanks> ranks =
      LaunchedRanks::discover([](const char* name) { return std::getenv(name); });
  if (request.list && !request.tiers.empty() && request.tier.empty()) {
    std::fputs(tier_lines(read_tiers(request.tiers)).c_str(), stdout);
    return 0;
  }
  if (request.tiers.empty() && !request.tier.empty())
    fail(fmt::format("run: --tier {} belongs to a table; name its file by --tiers, or leave --tier out", request.tier));
  if (!request.tiers.empty() && !request.paths.empty())
    fail("run: give scenario files, or --tier with --tiers, whose scenarios it runs");
  std::optional<Tier> tier;
  if (!request.tiers.empty()) tier = apply_tier(request);
  find_bundled_scenarios(request.paths, program);
  if (ranks && !ranks->is_head()) {  // whose results go to the first rank
    request.against.clear();
    request.accept.clear();
    request.allow.clear();
    request.annotate = false;
  }
  RunJob job(request, tier);
  try {
    return run_selected(request, program, ranks, job);
  } catch (const Error& error) {
    if (!request.annotate) throw;
    report_error(error.what());
    job.add_error(error.what());
    return job.publish_no_results(2);
  }
}

}  // namespace fp8lab
