#include "harness/cli/run/run_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/regular_file.h"
#include "harness/results/job/job_summary.h"
#include "harness/scenario/id_matcher.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

/// The path of the baseline while the run writes to `out`: a copy, if the run replaces the file.
std::string kept_baseline(const std::string& baseline, const fs::path& out, std::FILE* text) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(baseline, ignored) ? fs::path(baseline) / "results.json" : fs::path(baseline);
  if (!fs::exists(file, ignored)) return file.string() + ".gz";  // which no run writes
  if (!fs::equivalent(file, out / "results.json", ignored)) return baseline;
  const fs::path kept = out / "baseline.json";
  if (fs::exists(fs::symlink_status(kept, ignored)) &&
      read_regular_file(kept).substr(0, 100).find("\"schema\": \"fp8lab.results/") == std::string::npos)
    fail(
        fmt::format("{}: the baseline would be kept there, and this is no baseline; give another directory with -o, or "
                    "remove it",
                    kept.string()));
  fs::remove(kept, ignored);
  std::error_code error;
  fs::copy_file(file, kept, error);
  if (error) fail(fmt::format("{}: cannot be written: {}", kept.string(), error.message()));
  std::fprintf(text, "this run would overwrite the baseline; it is kept as %s\n", kept.c_str());
  return kept.string();
}

}  // namespace

RunJob::RunJob(const RunRequest& request, const std::optional<Tier>& tier) : request_(request) {
  if (tier) {
    title_ += " " + tier->name;
    limit_s_ = tier->limit_s;
  }
  for (const auto& [option, given] :
       {std::pair("--accept", !request.accept.empty()), {"--allow", !request.allow.empty()}})
    if (given && request.against.empty())
      fail(fmt::format("{} needs --against: without a baseline there is nothing to accept", option));
  if (request.against.empty() || request.list || request.dry_run) return;
  if (!request.accept.empty()) acceptances_ = read_acceptances(request.accept);
  if (!request.allow.empty()) id_matcher("--allow", request.allow);
  try {
    load_run(request.against);
  } catch (const Error& error) {
    fail(fmt::format("--against: {}", error.what()));
  }
  baseline_ = kept_baseline(request.against, request.out, request.json ? stderr : stdout);
}

const RunComparison* RunJob::compare(const RecordList& records, bool complete, const std::string& environment,
                                     std::FILE* text) {
  if (baseline_.empty()) return nullptr;
  if (!complete) {
    errors_.push_back("the run was stopped before its last cell, so it is not compared with " + baseline_);
    std::fprintf(text, "%s\n", for_terminal(errors_.back()).c_str());
    return nullptr;
  }
  try {
    const StoredRun baseline = load_run(baseline_);
    StoredRun run{.complete = complete, .environment_json = environment, .cells = {}};
    for (std::size_t i = 0; i < records.size(); ++i) run.cells.push_back(records.read(i));
    comparison_ =
        compare_series({baseline, run}, request_.allow.empty() ? nullptr : id_matcher("--allow", request_.allow));
  } catch (const Error& error) {
    failure_ = error.what();
    report_error(failure_);
    errors_.push_back(failure_);
    return nullptr;
  }
  std::fprintf(text, "\n%s", comparison_text(*comparison_).c_str());
  accepted_ = accept(acceptances_, *comparison_, today());
  for (const AcceptedChange& change : accepted_.changes)
    std::fputs((for_terminal(
                    fmt::format("{}: {}; accepted until {}: {}", change.id, change.text, change.expires, change.why)) +
                "\n")
                   .c_str(),
               text);
  return &*comparison_;
}

int RunJob::exit_code(int run_code) const {
  const int compared = !failure_.empty() ? 2 : comparison_ ? comparison_->exit_code() : 0;
  return compared != 0 && (run_code == 0 || run_code == 3) ? compared : run_code;
}

std::string RunJob::meaning(int run_code, const std::string& words) const {
  const int code = exit_code(run_code);
  if (code == run_code) return words;
  if (code == 2) return failure_;
  if (code == 1) return "regressions against " + baseline_;
  const std::string own = run_code == 0 ? "" : fmt::format("; the run itself: {} (exit {})", words, run_code);
  return fmt::format(
      "{}: no cell ran both here and in {}; give --against a run of these cells, or leave it out until there is one{}",
      kNothingCompared, baseline_, own);
}

JobReport RunJob::report(int code, const std::string& meaning) const {
  return {.title = title_,
          .code = code,
          .meaning = meaning,
          .errors = errors_,
          .comparison = comparison_ ? &*comparison_ : nullptr,
          .accepted = accepted_.changes};
}

void RunJob::warn(const std::string& message, std::FILE* text) const {
  if (request_.annotate && on_github()) std::fprintf(text, "%s\n", annotation("warning", "fp8lab", message).c_str());
  std::fprintf(stderr, "fp8lab: warning: %s\n", for_terminal(message).c_str());
}

void RunJob::publish(const ResultSet& results, const RecordList& records, int run_code, const std::string& words,
                     double seconds, std::FILE* text) const {
  for (const std::string& warning : accepted_.warnings) warn(warning, text);
  if (comparison_)
    if (const std::string others = cells_of_other_scenarios(*comparison_); !others.empty())
      warn("against the baseline: " + others, text);
  if (limit_s_ > 0 && seconds > limit_s_)
    warn(fmt::format("{} took {:.0f} s and should take {:.0f} s at most", title_, seconds, limit_s_), text);
  if (!request_.annotate) return;
  JobReport job = report(exit_code(run_code), meaning(run_code, words));
  job.records = records;
  job.seconds = seconds;
  std::fputs(complaint_lines(job, on_github()).c_str(), text);
  results.write_document("run_exit_code", fmt::format("{}\n", run_code));
  if (const std::string failure = append_job_summary(job, read_regular_file(results.path_of("summary.md")));
      !failure.empty())
    warn(failure, text);
}

int RunJob::publish_no_results(int code) const {
  if (!request_.annotate || request_.list || request_.dry_run) return code;
  std::FILE* text = request_.json ? stderr : stdout;
  const JobReport job =
      report(code, code == 5 ? "nothing ran" : "bad configuration or usage, or results cannot be written");
  const std::string words = fmt::format("{}: {}", job.meaning, fmt::join(errors_, "; "));
  std::fputs(complaint_lines(job, on_github()).c_str(), text);
  try {
    leave_no_results(request_.out, junit_of_no_results(title_, code, words));
  } catch (const Error& error) {  // the directory is another's, which is reported already if a run was refused for it
    if (std::ranges::find(errors_, error.what()) == errors_.end()) report_error(error.what());
  }
  if (const std::string failure = append_job_summary(job, ""); !failure.empty()) warn(failure, text);
  std::fprintf(text, "exit %d: %s\n", code, for_terminal(words).c_str());
  return code;
}

}  // namespace fp8lab
