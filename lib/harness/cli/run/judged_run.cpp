#include "harness/cli/run/judged_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <utility>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cli/progress.h"
#include "harness/cli/run/run_end.h"
#include "harness/results/environment.h"
#include "harness/results/json_codec.h"
#include "harness/results/results.h"
#include "harness/run/launched_runner.h"
#include "harness/scenario/controls.h"

namespace fp8lab {
namespace {

/// A run from its first cell to its exit code.
class Run {
 public:
  Run(const RunRequest& request, const RunnerOptions& options, const Program& program, RunJob& job,
      const std::vector<PlannedCell>& cells, std::set<std::string> entire, const RunCells& run_cells)
      : request_(request),
        options_(options),
        program_(program),
        job_(job),
        cells_(cells),
        entire_(std::move(entire)),
        run_cells_(run_cells),
        text_(request.json ? stderr : stdout),
        results_(request.out, request.resume),
        environment_(environment_json(program.build, program.vocabulary().devices)) {}

  int operator()() {
    if (!results_.notice().empty()) std::fprintf(text_, "%s\n", results_.notice().c_str());
    results_.write_environment(environment_);
    for (const PlannedCell& cell : cells_) {
      if (results_.find_finished(cell.config.id, hash_of(cell)) == nullptr) continue;
      finished_.insert(cell.config.id);
      CellRecord record = results_.read(cell.config.id);
      if (place(record, cell)) results_.update(record);
    }
    if (!finished_.empty())
      std::fprintf(text_, "%zu of %zu cells are finished already\n", finished_.size(), cells_.size());
    std::string write_error;
    try {
      outcome_.interrupted_by = finished_.empty() ? run(cells_) : run(unfinished());
    } catch (const RanksLost& error) {
      report(error.what());
      outcome_.ranks_lost = true;
    } catch (const Error& error) {
      write_error = error.what();
    }
    return close(write_error);
  }

 private:
  /// Updates file, line and title in the record of an earlier run to the present scenario's; false if none of
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

  std::vector<PlannedCell> unfinished() const {
    std::vector<PlannedCell> left;
    std::copy_if(cells_.begin(), cells_.end(), std::back_inserter(left),
                 [&](const PlannedCell& cell) { return !finished_.contains(cell.config.id); });
    return left;
  }

  int run(const std::vector<PlannedCell>& cells) {
    Progress progress(text_, cells.size());
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
      const int signal = run_cells_(cells, program_.vocabulary(), options_, events);
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
    summary.comparison = job_.compare(records, summary.complete, environment_, text_);
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
      report(error);
      outcome_.bad_usage = true;
    }
    if (request_.json)
      results_.write_json(ids, environment_, summary,
                          [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); });
    const int own_code = exit_code(decided(records));
    // Without documents the records may be unreadable, and the words read some of them.
    const std::string words = documented ? exit_words(own_code, records) : std::string(exit_code_meaning(own_code));
    if (documented) job_.publish(results_, records, own_code, words, seconds, text_);
    const int code = job_.exit_code(own_code);
    std::vector<std::string> tail = last_lines(summary, documented);
    tail.push_back(fmt::format("exit {}: {}", code, for_terminal(job_.meaning(own_code, words))));
    std::fputs(end_of_run(summary.findings, tail).c_str(), text_);
    if (documented && summary.complete && results_.has_only(ids)) results_.empty_lines();
    return code;
  }

  void report(const std::string& error) {
    report_error(error);
    job_.add_error(error);
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

  /// The lines between the findings and the exit code: at most 11.
  std::vector<std::string> last_lines(const RunSummary& summary, bool documented) const {
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
    return out;
  }

  const RunRequest& request_;
  const RunnerOptions& options_;
  const Program& program_;
  RunJob& job_;
  const std::vector<PlannedCell>& cells_;
  std::set<std::string> entire_;
  const RunCells& run_cells_;
  std::FILE* text_;
  ResultSet results_;
  std::string environment_;
  std::set<std::string> finished_;  ///< ids
  RunOutcome outcome_;
  ControlCounts controls_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

int run_and_judge(const RunRequest& request, const RunnerOptions& options, const Program& program, RunJob& job,
                  const std::vector<PlannedCell>& cells, std::set<std::string> entire, const RunCells& run_cells) {
  return Run(request, options, program, job, cells, std::move(entire), run_cells)();
}

}  // namespace fp8lab
