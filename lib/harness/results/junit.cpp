#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/cell/escape.h"
#include "harness/results/reports.h"

namespace fp8lab {
namespace {

/// Text for an attribute, on one line: XML parsers replace line ends in attributes by spaces.
std::string attribute(const std::string& text) { return for_xml(printable(text)); }

enum class Outcome { kPassed, kFailure, kError, kSkipped };

Outcome outcome_of(const RecordList::Head& cell) {
  if (cell.undecided_control) return Outcome::kSkipped;
  switch (cell.verdict) {
    case Verdict::kConfirmed:
    case Verdict::kUnaffected:
    case Verdict::kPass: return Outcome::kPassed;
    case Verdict::kSkipped: return Outcome::kSkipped;
    case Verdict::kCrashed:
    case Verdict::kTimeout: return Outcome::kError;
    default: return Outcome::kFailure;
  }
}

std::string body_of(const CellRecord& record) {
  std::string body = record.reason + "\n";
  for (const Gate& gate : record.gates) {
    const char* word = !gate.pass ? "UNDECIDED" : *gate.pass ? "pass" : "FAIL";
    body += fmt::format("{}: {}{}", word, gate.text, figures_of(gate));
    if (!gate.detail.empty()) body += "; " + gate.detail;
    body += "\n";
  }
  for (const auto& [arm, result] : record.arms)
    if (!result.output_tail.empty())
      body += fmt::format("--- the {} arm printed, at last:\n{}\n", name(arm), result.output_tail);
  return body;
}

std::string test_case(const CellRecord& record) {
  std::string out = fmt::format(R"(    <testcase classname="{}" name="{}" time="{:.3f}" file="{}")",
                                attribute(record.config.scenario), attribute(record.config.id), record.seconds,
                                attribute(record.file));
  const Outcome outcome = outcome_of(head_of(record));
  if (outcome == Outcome::kPassed) return out + "/>\n";
  if (outcome == Outcome::kSkipped)
    return out + fmt::format(">\n      <skipped message=\"{}\"/>\n    </testcase>\n", attribute(record.reason));
  const char* element = outcome == Outcome::kError ? "error" : "failure";
  return out + fmt::format(">\n      <{0} message=\"{1}\" type=\"{2}\">{3}</{0}>\n    </testcase>\n", element,
                           attribute(record.reason), name(record.verdict), for_xml(body_of(record)));
}

std::string test_case(const UnseenFix& unseen) {
  return fmt::format(
      "    <testcase classname=\"{0}\" name=\"{0}: a cell shows each fix\">\n      <failure message=\"{1}\" "
      "type=\"unseen_fix\">{2}</failure>\n    </testcase>\n",
      attribute(unseen.scenario), attribute(unseen.text), for_xml(unseen.text));
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;

  void add(const RecordList::Head& cell) {
    const Outcome outcome = outcome_of(cell);
    ++tests;
    failures += outcome == Outcome::kFailure;
    errors += outcome == Outcome::kError;
    skipped += outcome == Outcome::kSkipped;
    seconds += cell.seconds;
  }

  void add(const UnseenFix&) {
    ++tests;
    ++failures;
  }

  std::string attributes() const {
    return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3f}")", tests, failures, errors,
                       skipped, seconds);
  }
};

}  // namespace

void write_junit_xml(const RecordList& records, const RunSummary& run, const TextSink& out) {
  std::vector<std::string> scenarios;
  std::map<std::string, Counts> counts;
  std::map<std::string, std::vector<std::size_t>> cells;
  Counts total;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const RecordList::Head& cell = records.heads[i];
    if (!counts.contains(cell.scenario)) scenarios.push_back(cell.scenario);
    counts[cell.scenario].add(cell);
    cells[cell.scenario].push_back(i);
    total.add(cell);
  }
  for (const UnseenFix& unseen : run.unseen_fixes) {
    counts[unseen.scenario].add(unseen);
    total.add(unseen);
  }
  out("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
  out(fmt::format("<testsuites name=\"fp8lab\" {}>\n", total.attributes()));
  for (const std::string& scenario : scenarios) {
    out(fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\">\n", attribute(scenario),
                    counts[scenario].attributes(), attribute(run.date)));
    for (const std::size_t i : cells[scenario]) out(test_case(records.read(i)));
    for (const UnseenFix& unseen : run.unseen_fixes)
      if (unseen.scenario == scenario) out(test_case(unseen));
    out("  </testsuite>\n");
  }
  out("</testsuites>\n");
}

}  // namespace fp8lab
