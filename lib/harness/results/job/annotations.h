#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/compare/acceptance.h"
#include "harness/results/record.h"

// What a run reports to the CI system that runs its job.
namespace fp8lab {

/// The conclusions of a run and of its comparison with a baseline.
struct JobReport {
  std::string title = "fp8lab";  ///< with the tier: "fp8lab smoke"
  int code = 0;                  ///< exit code
  std::string meaning;           ///< meaning of the code, in words
  double seconds = 0;
  std::vector<std::string> errors = {};
  RecordList records = {};                    ///< none if the run came to no results
  const RunComparison* comparison = nullptr;  ///< null: not compared
  std::vector<AcceptedChange> accepted = {};
};

/// A place in a scenario at which a reader should look.
struct Complaint {
  std::string file;  ///< below $GITHUB_WORKSPACE or the working directory, if it is there
  int line = 0;      ///< 0: unknown
  std::string title, message;
};

/// Annotations of a kind that GitHub shows of a step.
inline constexpr std::size_t kMostAnnotations = 10;

bool on_github();

/// A workflow command of GitHub's runner: "::error file=...,line=...,title=...::message".
std::string annotation(std::string_view kind, const std::string& title, const std::string& message,
                       const std::string& file = "", int line = 0);

/// Cells that did not come out well, then regressions. Complaints with the same place and title are one.
std::vector<Complaint> complaints(const JobReport& report);

/// The complaints as lines: on GitHub at most kMostAnnotations annotations; elsewhere as compilers write them. Empty if
/// there is nothing to complain of.
std::string complaint_lines(const JobReport& report, bool github);

/// The cells that a change of their scenario takes from the comparison, and that no entry accepts; "" if there are
/// none.
std::string cells_of_other_scenarios(const RunComparison& comparison);

}  // namespace fp8lab
