#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/reports.h"

namespace fp8lab {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

/// Length of the UTF-8 sequence of a character that XML 1.0 allows at `i`, or 0.
std::size_t xml_character(const std::string& text, std::size_t i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x80) return byte >= 0x20 || byte == '\t' || byte == '\n' || byte == '\r' ? 1 : 0;
  const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
  if (byte < 0xC2 || byte > 0xF4 || i + length > text.size()) return 0;
  char32_t code = byte & (0xFF >> (length + 1));
  for (std::size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[i + k]);
    if ((next & 0xC0) != 0x80) return 0;
    code = (code << 6) | (next & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return overlong || surrogate || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF ? 0 : length;
}

enum class Outcome { kPassed, kFailure, kError, kSkipped };

Outcome outcome_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kConfirmed:
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
                                xml_escaped(record.config.scenario), xml_escaped(record.config.id), record.seconds,
                                xml_escaped(record.file));
  const Outcome outcome = outcome_of(record.verdict);
  if (outcome == Outcome::kPassed) return out + "/>\n";
  if (outcome == Outcome::kSkipped)
    return out + fmt::format(">\n      <skipped message=\"{}\"/>\n    </testcase>\n", xml_escaped(record.reason));
  const char* element = outcome == Outcome::kError ? "error" : "failure";
  return out + fmt::format(">\n      <{0} message=\"{1}\" type=\"{2}\">{3}</{0}>\n    </testcase>\n", element,
                           xml_escaped(record.reason), name(record.verdict), xml_escaped(body_of(record)));
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;

  void add(const CellRecord& record) {
    const Outcome outcome = outcome_of(record.verdict);
    ++tests;
    failures += outcome == Outcome::kFailure;
    errors += outcome == Outcome::kError;
    skipped += outcome == Outcome::kSkipped;
    seconds += record.seconds;
  }

  std::string attributes() const {
    return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3f}")", tests, failures, errors,
                       skipped, seconds);
  }
};

}  // namespace

std::string xml_escaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = xml_character(text, i);
    if (length == 0) {
      out += kReplacement;
      ++i;
      continue;
    }
    switch (text[i]) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out.append(text, i, length);
    }
    i += length;
  }
  return out;
}

std::string junit_xml(const std::vector<CellRecord>& records, const RunSummary& run) {
  std::vector<std::string> scenarios;
  std::map<std::string, Counts> counts;
  Counts total;
  for (const CellRecord& record : records) {
    if (counts.find(record.config.scenario) == counts.end()) scenarios.push_back(record.config.scenario);
    counts[record.config.scenario].add(record);
    total.add(record);
  }
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  out += fmt::format("<testsuites name=\"fp8lab\" {}>\n", total.attributes());
  for (const std::string& scenario : scenarios) {
    out += fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\">\n", xml_escaped(scenario),
                       counts[scenario].attributes(), xml_escaped(run.date));
    for (const CellRecord& record : records)
      if (record.config.scenario == scenario) out += test_case(record);
    out += "  </testsuite>\n";
  }
  return out + "</testsuites>\n";
}

}  // namespace fp8lab
