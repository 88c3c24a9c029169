#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/results/reports.h"

namespace fp8lab {
namespace {

/// Text for an attribute, on one line: XML parsers replace line ends in attributes by spaces.
std::string attribute(const std::string& text) { return for_xml(printable(text)); }

std::string test_case(const std::string& suite, const std::string& name, const std::string& file = "") {
  return fmt::format(R"(    <testcase classname="{}" name="{}" time="0"{})", attribute(suite), attribute(name),
                     file.empty() ? "" : fmt::format(R"( file="{}")", attribute(file)));
}

std::string ending(const char* element, const std::string& message, const std::string& type, const std::string& text) {
  return fmt::format(">\n      <{0} message=\"{1}\" type=\"{2}\">{3}</{0}>\n    </testcase>\n", element,
                     attribute(message), attribute(type), for_xml(text));
}

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
  return out + ending(element, record.reason, std::string(name(record.verdict)), body_of(record));
}

std::string test_case(const UnseenFix& unseen) {
  return fmt::format(R"(    <testcase classname="{0}" name="{0}: a cell shows each fix")", attribute(unseen.scenario)) +
         ending("failure", unseen.text, "unseen_fix", unseen.text);
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

  void add(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
  }

  std::string attributes() const {
    return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3f}")", tests, failures, errors,
                       skipped, seconds);
  }
};

/// The comparison with a baseline as a suite: a failure for each cell that is worse.
struct ComparedSuite {
  explicit ComparedSuite(const RunComparison& comparison) {
    const std::string suite = "against the baseline";
    std::vector<std::pair<const Change*, std::string>> cells;  // with all that is worse
    for (const Change& change : comparison.changes) {
      if (!change.is_regression()) continue;
      const auto known = std::ranges::find_if(cells, [&](const auto& cell) { return cell.first->id == change.id; });
      if (known == cells.end())
        cells.emplace_back(&change, text_of(change));
      else
        known->second += "\n" + text_of(change);
    }
    for (const auto& [first, texts] : cells)
      text += test_case(suite, first->id, first->file) + ending("failure", text_of(*first), "regression", texts);
    counts.tests = static_cast<int>(std::max<std::size_t>(cells.size(), 1));
    counts.failures = static_cast<int>(cells.size());
    if (cells.empty() && comparison.exit_code() == 5) {
      counts.errors = 1;
      text = test_case(suite, kNothingCompared) + ending("error", kNothingCompared, "exit 5", kNothingCompared);
    } else if (cells.empty()) {
      text = test_case(suite, fmt::format("no regression in {}", counted(comparison.cells_compared, "cell"))) + "/>\n";
    }
    text = fmt::format("  <testsuite name=\"{}\" {}>\n{}  </testsuite>\n", suite, counts.attributes(), text);
  }

  Counts counts;
  std::string text;
};

constexpr std::string_view kBegin = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"fp8lab\" ";
constexpr std::string_view kNoResults =
    "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\">\n  <testsuite name=\"run without results\" ";

}  // namespace

std::string junit_of_no_results(const std::string& name, int code, const std::string& text) {
  return fmt::format("{}{}{}{}{}  </testsuite>\n</testsuites>\n", kBegin, kNoResults,
                     "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\">\n", test_case("fp8lab run", name),
                     ending("error", text, fmt::format("exit {}", code), text));
}

bool is_junit_of_no_results(std::string_view text) {
  return text.starts_with(std::string(kBegin) + std::string(kNoResults));
}

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
  std::string compared;
  if (run.comparison != nullptr) {
    const ComparedSuite suite(*run.comparison);
    total.add(suite.counts);
    compared = suite.text;
  }
  out(fmt::format("{}{}>\n", kBegin, total.attributes()));
  for (const std::string& scenario : scenarios) {
    out(fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\">\n", attribute(scenario),
                    counts[scenario].attributes(), attribute(run.date)));
    for (const std::size_t i : cells[scenario]) out(test_case(records.read(i)));
    for (const UnseenFix& unseen : run.unseen_fixes)
      if (unseen.scenario == scenario) out(test_case(unseen));
    out("  </testsuite>\n");
  }
  out(compared + "</testsuites>\n");
}

}  // namespace fp8lab
