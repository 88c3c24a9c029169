#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/record.h"

// A run as documents for other programs and for people: functions from records to text, which goes to a sink piece by
// piece, because neither the records of a run nor its documents need fit in memory.
namespace fp8lab {

using TextSink = std::function<void(std::string_view)>;

struct RunSummary {
  std::string date;         ///< ISO 8601, UTC
  std::string environment;  ///< one line: program, commit, machine
  bool complete = true;     ///< false when the run was stopped before its last cell
  std::size_t planned = 0;  ///< cells
  double seconds = 0;
};

/// JUnit as CI systems read it: a suite per scenario, classname = scenario, name = cell id; what a person needs is in
/// the body as well as in the attributes. Verdicts: crashed and timeout are errors; those with a failed or undecided
/// gate are failures; skipped is skipped.
void write_junit_xml(const RecordList& records, const RunSummary& run, const TextSink& out);

/// Markdown: what needs attention, then every scenario's figures, claims and holders.
void write_summary_markdown(const RecordList& records, const RunSummary& run, const TextSink& out);

/// "20 confirmed, 1 not_fixed, 3 skipped".
std::string counts_of(const std::vector<Verdict>& verdicts);

/// "; observed 107292 B; limit 5 B": what there is of both.
std::string figures_of(const Gate& gate);

}  // namespace fp8lab
