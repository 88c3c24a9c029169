#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/compare/compare.h"
#include "harness/results/record.h"
#include "harness/results/run_findings.h"

// Documents about a run, for other programs and for people. Functions write their text to a sink piece by piece,
// because neither the records of a run nor its documents need to fit in memory.
namespace fp8lab {

using TextSink = std::function<void(std::string_view)>;

/// A scenario of which no cell shows a difference between before and after.
struct UnseenFix {
  std::string scenario;
  std::string text;  ///< "SCENARIO: no cell shows what FIX fixes: ..."
};

struct RunSummary {
  std::string date;         ///< ISO 8601, UTC
  std::string environment;  ///< one line: program, commit, machine
  bool complete = true;     ///< false: the run stopped before its last cell
  std::size_t planned = 0;  ///< number of cells in the plan
  double seconds = 0;
  std::vector<UnseenFix> unseen_fixes = {};
  std::vector<RunFinding> findings = {};      ///< findings of all its cells
  const RunComparison* comparison = nullptr;  ///< with a baseline; null: none
};

/// Writes JUnit XML for CI systems: one suite per scenario, classname = scenario, name = cell id. The message is in the
/// body as well as in the attributes. Verdicts crashed and timeout are errors; verdicts with a failed or undecided gate
/// are failures; skipped is skipped. A scenario whose fix no cell shows has a failure of its own, and so has each cell
/// that is worse than in the baseline.
void write_junit_xml(const RecordList& records, const RunSummary& run, const TextSink& out);

inline constexpr const char* kNothingCompared = "nothing in common with the baseline";

/// The JUnit XML of a run that came to no results: one error.
std::string junit_of_no_results(const std::string& name, int code, const std::string& text);
/// True for a text of junit_of_no_results().
bool is_junit_of_no_results(std::string_view text);

/// Writes Markdown: the cells that need attention, then the figures, claims and holders of every scenario.
void write_summary_markdown(const RecordList& records, const RunSummary& run, const TextSink& out);

/// "20 confirmed, 1 not_fixed, 3 skipped".
std::string counts_of(const std::vector<Verdict>& verdicts);

/// "; observed 107292 B; limit 5 B", each part only if the gate has it.
std::string figures_of(const Gate& gate);

}  // namespace fp8lab
