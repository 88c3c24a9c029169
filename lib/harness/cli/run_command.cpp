#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cli/listing.h"
#include "harness/cli/program.h"
#include "harness/cli/progress.h"
#include "harness/cli/run_end.h"
#include "harness/cli/selection.h"
#include "harness/results/json_codec.h"
#include "harness/results/results.h"
#include "harness/run/launched_runner.h"
#include "harness/run/limits.h"
#include "harness/scenario/controls.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {
namespace {

RunnerOptions runner_options(const RunRequest& request, const Program& program) {
  RunnerOptions options;
  options.jobs = request.jobs > 0 ? request.jobs : usable_cores();
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

/// A run from its first cell to its exit code.
class Run {
 public:
  /// `entire`: the scenarios none of whose cells was left out.
  Run(const RunRequest& request, const Program& program, const std::vector<PlannedCell>& cells,
      std::set<std::string> entire, RunCells run_cells)
      : request_(request),
        program_(program),
        cells_(cells),
        entire_(std::move(entire)),
        run_cells_(std::move(run_cells)),
        text_(request.json ? stderr : stdout),
        results_(request.out, request.resume),
        environment_(environment_json(program.build, program.vocabulary().devices)) {}

  int operator()() {
    if (!results_.notice().empty()) std::fprintf(text_, "%s\n", results_.notice().c_str());
    results_.write_environment(environment_);
    std::vector<PlannedCell> left;
    for (const PlannedCell& cell : cells_) {
      if (results_.find_finished(cell.config.id, hash_of(cell)) == nullptr) {
        left.push_back(cell);
        continue;
      }
      finished_.insert(cell.config.id);
      CellRecord record = results_.read(cell.config.id);
      if (place(record, cell)) results_.update(record);
    }
    if (!finished_.empty())
      std::fprintf(text_, "%zu of %zu cells are finished already\n", finished_.size(), cells_.size());
    std::string write_error;
    try {
      outcome_.interrupted_by = run(left);
    } catch (const RanksLost& error) {
      report_error(error.what());
      outcome_.ranks_lost = true;
    } catch (const Error& error) {
      write_error = error.what();
    }
    return close(write_error);
  }

 private:
  /// Updates file, line and title in the record of an earlier run to those of the present scenario; false if none of
  /// them changed.
  static bool place(CellRecord& record, const PlannedCell& cell) {
    bool moved = false;
    const auto set = [&](auto& was, const auto& is) {
      moved = moved || was != is;
      was = is;
    };
    set(record.file, cell.file);
    set(record.line, cell.line);
    set(record.title, cell.title);
    set(record.upstream, cell.upstream);
    set(record.counterfactual, cell.counterfactual);
    for (std::size_t i = 0; i < std::min(record.gates.size(), cell.expect.size()); ++i)
      set(record.gates[i].line, cell.expect[i].line);
    return moved;
  }

  int run(const std::vector<PlannedCell>& left) {
    Progress progress(text_, left.size());
    const RunnerOptions options = runner_options(request_, program_);
    RunnerEvents events;
    events.arm_ended = [&](const CellConfig& cell, Arm arm, ArmResult& result) {
      results_.write_timeline(cell.id, arm, std::exchange(result.timeline_json, {}));
    };
    events.finished = [&](CellRecord&& record) {
      results_.append(record);
      progress.finished(record);
      finished_.insert(record.config.id);
    };
    events.tick = [&](int running) { progress.tick(running); };
    try {
      const int signal = run_cells_(left, program_.vocabulary(), options, events);
      progress.close();
      return signal;
    } catch (...) {
      progress.close();
      throw;
    }
  }

  int close(const std::string& write_error) {
    std::vector<std::string> ids;
    for (const PlannedCell& cell : cells_)
      if (finished_.contains(cell.config.id)) ids.push_back(cell.config.id);
    const RecordList records = results_.records(ids);
    outcome_.verdicts = verdicts_of(records);
    using Outcome = ControlCounts::Outcome;
    for (std::size_t i = 0; i < ids.size(); ++i)
      controls_.add(ids[i], is_good(outcome_.verdicts[i])                    ? Outcome::kGood
                            : outcome_.verdicts[i] == Verdict::kInconclusive ? Outcome::kUndecided
                                                                             : Outcome::kWrong);
    const std::vector<UnseenFix> unseen = unseen_fixes(ids);
    outcome_.fix_unseen = !unseen.empty();
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    RunSummary summary{.date = now_utc(),
                       .environment = environment_line(program_.build),
                       .complete = ids.size() == cells_.size(),
                       .planned = cells_.size(),
                       .seconds = seconds,
                       .unseen_fixes = unseen};
    std::string error = write_error;
    bool documented = false;
    try {
      summary.findings = run_findings(records);  // reads records, which may fail
      results_.finish(ids, environment_, summary);
      documented = true;
    } catch (const Error& second) {
      if (error.empty()) error = second.what();
    }
    if (!error.empty()) {
      report_error(error);
      outcome_.bad_usage = true;
    }
    if (request_.json)
      results_.write_json(ids, environment_, summary,
                          [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); });
    const int code = exit_code(decided(records));
    std::fputs(end_of_run(summary.findings, last_lines(summary, documented, code, records)).c_str(), text_);
    return code;
  }

  /// Without control cells that the machine is too noisy to decide: they are counted, and nothing failed.
  RunOutcome decided(const RecordList& records) const {
    RunOutcome out = outcome_;
    out.verdicts.clear();
    for (const RecordList::Head& head : records.heads)
      if (!head.undecided_control) out.verdicts.push_back(head.verdict);
    return out.verdicts.empty() ? outcome_ : out;
  }

  /// The scenarios that were run entire and whose fix shows in none of their cells.
  std::vector<UnseenFix> unseen_fixes(const std::vector<std::string>& ids) const {
    std::map<std::string, Verdict> verdicts;  // by id
    for (std::size_t i = 0; i < ids.size(); ++i) verdicts.emplace(ids[i], outcome_.verdicts[i]);
    std::map<std::string, std::set<std::string>> unseen;  // fixes by scenario
    std::set<std::string> others;                         // scenarios with a cell that is not so
    for (const PlannedCell& cell : cells_) {
      const CellConfig& config = cell.config;
      if (config.fix.empty() || config.control != Control::kNone) continue;
      const auto verdict = verdicts.find(config.id);
      if (verdict != verdicts.end() && verdict->second == Verdict::kUnaffected && entire_.contains(config.scenario))
        unseen[config.scenario].insert(config.fix);
      else
        others.insert(config.scenario);
    }
    std::vector<UnseenFix> out;
    for (const auto& [scenario, fixes] : unseen)
      if (!others.contains(scenario))
        out.push_back({scenario, fmt::format("{}: no cell shows what {} fixes: before and after are equal in every "
                                             "figure that `expect` names",
                                             scenario, fmt::join(fixes, ", "))});
    return out;
  }

  /// The lines after the findings: at most 12.
  std::vector<std::string> last_lines(const RunSummary& summary, bool documented, int code,
                                      const RecordList& records) const {
    constexpr std::size_t kMostUnseen = 3;
    std::vector<std::string> out;
    const std::vector<UnseenFix>& unseen = summary.unseen_fixes;
    for (std::size_t i = 0; i < unseen.size() && i < kMostUnseen; ++i) out.push_back(for_terminal(unseen[i].text));
    if (unseen.size() > kMostUnseen)
      out.back() = fmt::format("and {} whose cells show no fix: summary.md",
                               counted(unseen.size() - kMostUnseen + 1, "more scenario"));
    if (!summary.complete)
      out.push_back(fmt::format("stopped: {} of {} cells finished; the same command with --resume goes on",
                                outcome_.verdicts.size(), summary.planned));
    out.push_back(fmt::format("{} in {:.1f} s: {}", counted(outcome_.verdicts.size(), "cell"), summary.seconds,
                              counts_of(outcome_.verdicts)));
    if (const std::string controls = controls_.text(); !controls.empty()) out.push_back(controls);
    std::set<std::string> selected;
    for (const PlannedCell& cell : cells_) selected.insert(cell.config.id);
    if (const std::size_t others = results_.count_others(selected); others > 0)
      out.push_back(
          fmt::format("outside of this selection: {} of an earlier run, in results.jsonl and not in results.json",
                      counted(others, "cell")));
    if (documented) {
      out.push_back("results: " + results_.path_of("results.json"));
      out.push_back("summary: " + results_.path_of("summary.md"));
      out.push_back(fmt::format("report:  fp8lab report {} -o report", request_.out));
    }
    // Without documents the records may be unreadable, and the words read some of them.
    out.push_back(fmt::format("exit {}: {}", code,
                              documented ? exit_words(code, records) : std::string(exit_code_meaning(code))));
    return out;
  }

  const RunRequest& request_;
  const Program& program_;
  const std::vector<PlannedCell>& cells_;
  std::set<std::string> entire_;
  RunCells run_cells_;
  std::FILE* text_;
  ResultSet results_;
  std::string environment_;
  std::set<std::string> finished_;  ///< ids
  RunOutcome outcome_;
  ControlCounts controls_;
  Clock::time_point start_ = Clock::now();
};

/// Runs cells over ranks that a launcher started; this process is one of them.
int run_launched(const LaunchedRanks& ranks, const RunRequest& request, const Program& program,
                 const std::vector<PlannedCell>& cells, std::set<std::string> entire) {
  LaunchedRunner runner(ranks, cells, program.vocabulary(), program.measure_over);
  if (ranks.is_head()) {
    std::FILE* text = request.json ? stderr : stdout;
    std::fprintf(text, "%s\n", ranks.describe().c_str());
    std::fflush(text);  // now, because this rank may wait minutes for the others
  }
  try {
    const int signal = runner.connect(runner_options(request, program));
    if (signal != 0) return exit_code({.verdicts = {}, .interrupted_by = signal});
    if (!ranks.is_head()) return runner.follow(runner_options(request, program));
  } catch (const RanksLost& error) {
    report_error(fmt::format("on rank {}: {}", ranks.rank(), error.what()));
    return exit_code({.verdicts = {}, .ranks_lost = true});
  }
  int code = exit_code({.verdicts = {}, .bad_usage = true});
  try {
    code = Run(request, program, cells, std::move(entire),
               [&](const auto&... arguments) { return runner.run(arguments...); })();
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

}  // namespace

int run_command(const RunRequest& request, const Program& program) {
  Vocabulary vocabulary = program.vocabulary();
  const std::optional<LaunchedRanks> ranks =
      LaunchedRanks::discover([](const char* name) { return std::getenv(name); });
  // Every launched rank is a process of its own.
  if (ranks) vocabulary.max_ranks = [](std::string_view) { return std::int64_t{kMostRanks}; };
  if (ranks && (request.processes > 0 || request.gate_time))
    fail("--processes and --gate-time need ranks that this program starts; start it without a launcher");
  if (ranks && !program.measure_over) fail("this program runs on one process alone; start it without a launcher");
  const bool speaks = !ranks || ranks->is_head();
  // Every rank reports its own errors, because its files may differ. It then ends before the ranks connect, so that no
  // rank waits for it.
  const auto tell = [&](const std::string& error) {
    report_error(speaks ? error : fmt::format("on rank {}: {}", ranks->rank(), error));
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
    return exit_code({.verdicts = {}, .bad_usage = true});
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
    return exit_code({});
  }
  if (const std::string later = foreseen(loaded.cells, false); speaks && !later.empty())
    std::fputs(later.c_str(), stderr);
  if (ranks) return run_launched(*ranks, request, program, loaded.cells, std::move(entire));
  need_descriptors(descriptors_needed(loaded.cells, runner_options(request, program).jobs),
                   "run fewer arms at a time (--jobs)");
  SignalWatch& watch = SignalWatch::until_exit();  // a second signal kills the children, not the writing of results
  return Run(request, program, loaded.cells, std::move(entire),
             [&](const auto&... arguments) { return run_cells(arguments..., watch); })();
}

}  // namespace fp8lab
