#pragma once

#include <string>
#include <vector>

#include "harness/record.h"

// A run as documents for other programs and for people. Pure functions from records to text.
namespace fp8lab {

struct RunSummary {
  std::string date;         ///< ISO 8601, UTC
  std::string environment;  ///< one line: program, commit, machine
  bool complete = true;     ///< false when the run was stopped before its last cell
  std::size_t planned = 0;  ///< cells
  double seconds = 0;
};

/// JUnit as CI systems read it: a suite per scenario, classname = scenario, name = cell id; what a person needs is in the
/// body as well as in the attributes. Verdicts: crashed and timeout are errors; those with a failed or undecided gate
/// are failures; skipped is skipped.
std::string junit_xml(const std::vector<CellRecord>& records, const RunSummary& run);

/// Markdown: what needs attention, then every scenario's figures, claims and holders.
std::string summary_markdown(const std::vector<CellRecord>& records, const RunSummary& run);

/// "20 confirmed, 1 not_fixed, 3 skipped".
std::string counts_of(const std::vector<Verdict>& verdicts);

/// "; observed 107292 B; limit 5 B": what there is of both.
std::string figures_of(const Gate& gate);

}  // namespace fp8lab
