#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/program.h"
#include "harness/cli/run/tiers.h"
#include "harness/results/job/annotations.h"
#include "harness/results/results.h"

namespace fp8lab {

/// What `run` does with its results beyond writing them: compares them with a baseline (--against, --allow, --accept),
/// and reports to the CI system whose job it is (--annotate).
class RunJob {
 public:
  /// Reads the baseline and the accepted changes once, so that a mistake in them is found before a long run. A baseline
  /// that the run would replace is copied to baseline.json next to it. Throws Error.
  RunJob(const RunRequest& request, const std::optional<Tier>& tier);

  void add_error(const std::string& error) { errors_.push_back(error); }

  /// Compares the finished cells with the baseline, if there is one, and prints the comparison to `text`. Null: there
  /// is none, the run was stopped, or the baseline can no longer be read, which is reported.
  const RunComparison* compare(const RecordList& records, bool complete, const std::string& environment,
                               std::FILE* text);
  /// The exit code of a run whose own code is `run_code`. A run that failed keeps its code. A regression outranks what
  /// a run left open, and so does a comparison of nothing.
  int exit_code(int run_code) const;
  /// exit_code() in words; `words`: the words for `run_code`.
  std::string meaning(int run_code, const std::string& words) const;
  /// Warns of what the comparison cannot gate; with --annotate prints complaints to `text`, writes run_exit_code and
  /// the step summary.
  void publish(const ResultSet& results, const RecordList& records, int run_code, const std::string& words,
               double seconds, std::FILE* text) const;
  /// As publish(), of a run that came to no results, and leaves their junit.xml in the run's directory. Returns `code`.
  int publish_no_results(int code) const;

 private:
  JobReport report(int code, const std::string& meaning) const;
  void warn(const std::string& message, std::FILE* text) const;

  const RunRequest& request_;
  std::string title_ = "fp8lab";
  double limit_s_ = 0;    ///< the tier's; 0: none
  std::string baseline_;  ///< path; "": none
  std::vector<Acceptance> acceptances_;
  std::optional<RunComparison> comparison_;
  Accepted accepted_;
  std::string failure_;  ///< the comparison's
  std::vector<std::string> errors_;
};

}  // namespace fp8lab
