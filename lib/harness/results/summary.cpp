#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/holder_bytes.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/results/reports.h"

namespace fp8lab {
namespace {

constexpr std::size_t kMostHolders = 12;

std::string row(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + for_markdown(cell) + " |";
  return out + "\n";
}

std::string table_head(const std::vector<std::string>& names) {
  std::string rule = "|";
  for (std::size_t i = 0; i < names.size(); ++i) rule += "---|";
  return row(names) + rule + "\n";
}

std::string shown(const std::optional<double>& value, std::string_view unit) {
  if (!value) return "–";
  return std::isfinite(*value) ? figure(*value, unit) : fmt::format("{}", *value);
}

std::string_view unit_of(const std::string& metric) {
  const Metric* entry = find_metric(metric);
  return entry ? entry->unit : "1";
}

/// The cell's id without the scenario's name: its axes.
std::string point_of(const CellRecord& record) {
  const std::string& id = record.config.id;
  const std::size_t slash = id.find('/');
  return slash == std::string::npos ? "(one cell)" : id.substr(slash + 1);
}

/// The metrics that get a row: the main ones of what the cell measures, and those that gates and claims of the scenario
/// name.
std::vector<std::string> metrics_of(const CellRecord& record) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view metric) {
    const bool known = std::any_of(record.arms.begin(), record.arms.end(), [&](const auto& arm) {
      const auto found = arm.second.metrics.find(std::string(metric));
      return found != arm.second.metrics.end() && (found->second.value || found->second.predicted);
    });
    if (known && std::find(out.begin(), out.end(), metric) == out.end()) out.emplace_back(metric);
  };
  for (const MetricGroup& group : metric_groups())
    if (std::ranges::find(record.config.measure, group.name) != record.config.measure.end())
      for (const std::string_view metric : group.main) add(metric);
  for (const Gate& gate : record.gates) add(gate.metric);
  for (const ClaimRecord& claim : record.claims) add(claim.claim.metric);
  return out;
}

std::string gate_lines(const CellRecord& record) {
  std::string out;
  for (const Gate& gate : record.gates) {
    out += fmt::format("- {} {}",
                       !gate.pass   ? "undecided:"
                       : *gate.pass ? "holds:"
                                    : "**fails:**",
                       for_markdown(gate.text)) +
           figures_of(gate);
    if (!gate.detail.empty()) out += "; " + for_markdown(gate.detail);
    out += "\n";
  }
  return out;
}

/// A part that a reader opens; GitHub and GitLab render it.
std::string fold(const std::string& title) {
  return fmt::format("<details>\n<summary>{}</summary>\n\n", for_xml(printable(title)));
}

constexpr std::string_view kFoldEnd = "</details>\n\n";

void write_findings(const std::vector<RunFinding>& findings, const TextSink& sink) {
  constexpr std::size_t kMostFindings = 15;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (i == 0) sink("## Findings\n\n");
    if (i == kMostFindings) sink("\n" + fold(counted(findings.size() - i, "more finding")));
    sink(fmt::format("- {}\n", for_markdown(findings[i].text)));
  }
  if (findings.size() > kMostFindings)
    sink("\n" + std::string(kFoldEnd));
  else if (!findings.empty())
    sink("\n");
}

/// One line for each of the first cells that need attention, and all of them in full, folded.
void write_attention(const RecordList& records, const TextSink& sink) {
  constexpr std::size_t kMostLines = 10;
  std::vector<std::size_t> cells;
  for (std::size_t i = 0; i < records.size(); ++i)
    if (!is_good(records.heads[i].verdict) && !records.heads[i].undecided_control) cells.push_back(i);
  if (cells.empty()) return;
  sink("## Needs attention\n\n");
  for (std::size_t i = 0; i < std::min(cells.size(), kMostLines); ++i)
    sink(fmt::format("- {}: {}\n", name(records.heads[cells[i]].verdict),
                     for_markdown_code(records.heads[cells[i]].id)));
  if (cells.size() > kMostLines) sink(fmt::format("- and {}\n", counted(cells.size() - kMostLines, "more cell")));
  sink("\n" + fold(fmt::format("Gates and output of {}", counted(cells.size(), "cell"))));
  for (const std::size_t i : cells) {
    const CellRecord record = records.read(i);
    std::string out = fmt::format("### {}: {}\n\n{}\n\n{}", name(record.verdict), for_markdown_code(record.config.id),
                                  for_markdown(record.reason), gate_lines(record));
    for (const auto& [arm, result] : record.arms)
      if (!result.output_tail.empty())
        out += fmt::format("\nThe {} arm printed, at last:\n\n{}", name(arm), for_markdown_block(result.output_tail));
    sink(out + "\n");
  }
  sink(kFoldEnd);
}

/// "crashed by SIGSEGV"
std::string end_of(const CellRecord& record, Arm arm) {
  const auto found = record.arms.find(arm);
  if (found == record.arms.end()) return "";
  std::string status = found->second.status;
  std::replace(status.begin(), status.end(), '_', ' ');
  return status + (found->second.signal.empty() ? "" : " by " + found->second.signal);
}

std::string figures_head() {
  return table_head({"cell", "verdict", "metric", "before", "after", "BF16", "predicted before", "predicted after"});
}

std::string figures(const CellRecord& record) {
  std::string out;
  bool first = true;
  const auto add = [&](const std::string& what, const std::array<std::string, 5>& columns) {
    std::vector<std::string> cells{first ? point_of(record) : "", first ? std::string(name(record.verdict)) : "", what};
    cells.insert(cells.end(), columns.begin(), columns.end());
    out += row(cells);
    first = false;
  };
  const bool ended_early =
      std::any_of(record.arms.begin(), record.arms.end(), [](const auto& arm) { return arm.second.status != "ok"; });
  if (ended_early)
    add("how the arm ended",
        {end_of(record, Arm::kBefore), end_of(record, Arm::kAfter), end_of(record, Arm::kBf16), "", ""});
  for (const std::string& metric : metrics_of(record)) {
    const std::string_view unit = unit_of(metric);
    const auto value = [&](Side side) { return shown(measured(record.arms, side, metric).value, unit); };
    const auto closed = [&](Side side) { return shown(predicted(record.arms, side, metric).value, unit); };
    add(metric,
        {value(Side::kBefore), value(Side::kAfter), value(Side::kBf16), closed(Side::kBefore), closed(Side::kAfter)});
  }
  if (first) add(record.reason, {});
  return out;
}

std::string claimed_figure(const Claim& claim) {
  const std::string_view base = unit_of(claim.metric);
  return claim.unit == base ? figure(claim.value, base) : fmt::format("{} {}", grouped(claim.value), claim.unit);
}

/// A figure in the claim's unit, followed by the exact figure.
std::string in_claims_unit(const std::optional<double>& value, const Claim& claim) {
  if (!value || !std::isfinite(*value)) return shown(value, "1");
  const std::string_view base = unit_of(claim.metric);
  const double factor = in_base_units(claim.unit, base).value_or(1);
  if (factor == 1) return figure(*value, base);
  return fmt::format("{} {} ({} {})", grouped(std::round(*value / factor * 100) / 100), claim.unit, grouped(*value),
                     base);
}

std::string claims_head() {
  return "Claims:\n\n" + table_head({"source", "words", "cell", "figure", "claimed", "predicted", "measured", "note"});
}

std::string claims(const CellRecord& record) {
  std::string out;
  for (const ClaimRecord& entry : record.claims) {
    const Claim& claim = entry.claim;
    out += row({claim.source, claim.words, point_of(record), fmt::format("{} {}", name(claim.side), claim.metric),
                claimed_figure(claim), in_claims_unit(entry.predicted, claim), in_claims_unit(entry.measured, claim),
                claim.note});
  }
  return out;
}

std::string holders(const CellRecord& record) {
  std::string out;
  for (const auto& [arm, result] : record.arms) {
    if (result.retained_by_holder.empty()) continue;
    out += fmt::format("Who still holds memory after backward in {}, {}:\n\n{}", for_markdown_code(point_of(record)),
                       name(arm), table_head({"holder", "bytes"}));
    const bool many = result.retained_by_holder.size() > kMostHolders;
    const HolderBytes shown_holders = many ? folded_by_index(result.retained_by_holder) : result.retained_by_holder;
    double rest = 0;
    for (std::size_t i = 0; i < shown_holders.size(); ++i) {
      const auto bytes = static_cast<double>(shown_holders[i].second);
      if (i < kMostHolders) {
        out += row({shown_holders[i].first, figure(bytes, "B")});
      } else {
        rest += bytes;
      }
    }
    if (rest > 0) out += row({"the rest", figure(rest, "B")});
    out += "\n";
  }
  return out;
}

std::set<std::string> emulations(const CellRecord& record) {
  std::set<std::string> out;
  for (const auto& [arm, result] : record.arms)
    if (!result.emulated.empty()) out.insert(result.emulated);
  return out;
}

/// What arms after a fix note, such as weights that stay in 16 bits: the first few texts with the number of their
/// cells.
class Notes {
 public:
  void add(const CellRecord& record) {
    const auto after = record.arms.find(Arm::kAfter);
    if (after == record.arms.end()) return;
    for (const std::string& text : after->second.notes) {
      const auto known = std::ranges::find(first_, text, &std::pair<std::string, int>::first);
      if (known != first_.end())
        ++known->second;
      else if (first_.size() < kMostNotes)
        first_.emplace_back(text, 1);
      else
        ++others_;
    }
  }
  std::string text(std::size_t cells) const {
    std::string out;
    for (const auto& [text, count] : first_)
      out += fmt::format("- {} ({} of {})\n", for_markdown(text), count, counted(cells, "cell"));
    if (others_ > 0) out += fmt::format("- and {} in `results.json`\n", counted(others_, "other note"));
    return out.empty() ? out : "Notes:\n\n" + out + "\n";
  }

 private:
  static constexpr std::size_t kMostNotes = 4;
  std::vector<std::pair<std::string, int>> first_;
  std::size_t others_ = 0;
};

/// The fixes of these cells, as Markdown code.
std::vector<std::string> fixes_of(const RecordList& records, const std::vector<std::size_t>& cells) {
  std::set<std::string> fixes;
  for (const std::size_t i : cells)
    if (!records.heads[i].fix.empty()) fixes.insert(for_markdown_code(records.heads[i].fix));
  return {fixes.begin(), fixes.end()};
}

/// Writes the section of one scenario. Each table is written while its cells are read, so every table reads the cells
/// again, unless it has no rows.
void write_scenario(const RecordList& records, const std::vector<std::size_t>& cells, const TextSink& sink) {
  const CellRecord head = records.read(cells.front());
  std::string out = fmt::format("## {}\n\n{}", for_markdown(head.config.scenario), for_markdown(head.title));
  if (!head.upstream.empty())
    out += fmt::format(" ({})", for_markdown(fmt::format("{}", fmt::join(head.upstream, ", "))));
  if (const std::vector<std::string> fixes = fixes_of(records, cells); !fixes.empty())
    out += fmt::format(". {}: {}", fixes.size() == 1 ? "Fix" : "Fixes", fmt::join(fixes, ", "));
  if (head.counterfactual) out += " (counterfactual: no release was without it)";
  sink(out + "\n\n" + figures_head());

  std::vector<std::size_t> with_claims, with_holders;
  std::map<std::string, int> emulated;
  Notes notes;
  for (const std::size_t i : cells) {
    const CellRecord record = records.read(i);
    sink(figures(record));
    notes.add(record);
    for (const std::string& text : emulations(record)) ++emulated[text];
    if (!record.claims.empty() && record.verdict != Verdict::kSkipped) with_claims.push_back(i);
    const auto retains = [](const auto& arm) { return !arm.second.retained_by_holder.empty(); };
    if (std::any_of(record.arms.begin(), record.arms.end(), retains)) with_holders.push_back(i);
  }
  sink("\n");
  for (const auto& [text, count] : emulated)
    sink(fmt::format("Emulated in {} of {} cells: {}.\n\n", count, cells.size(), for_markdown(text)));
  sink(notes.text(cells.size()));
  if (!with_claims.empty()) {
    sink(claims_head());
    for (const std::size_t i : with_claims) sink(claims(records.read(i)));
    sink("\n");
  }
  for (const std::size_t i : with_holders) sink(holders(records.read(i)));
}

}  // namespace

std::string figures_of(const Gate& gate) {
  const Metric* const metric = find_metric(gate.metric);
  const std::string unit = metric == nullptr || metric->unit == "1" ? "" : fmt::format(" {}", metric->unit);
  std::string out;
  if (gate.observed) out += fmt::format("; observed {}{}", shortest(*gate.observed), unit);
  if (gate.limit) out += fmt::format("; limit {}{}", shortest(*gate.limit), unit);
  return out;
}

std::string counts_of(const std::vector<Verdict>& verdicts) {
  std::map<Verdict, int> counts;
  for (const Verdict verdict : verdicts) ++counts[verdict];
  std::string out;
  for (const auto& [verdict, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, name(verdict));
  return out.empty() ? "no cells" : out;
}

void write_summary_markdown(const RecordList& records, const RunSummary& run, const TextSink& sink) {
  std::vector<std::string> scenarios;
  std::map<std::string, std::vector<std::size_t>> by_scenario;
  for (std::size_t i = 0; i < records.size(); ++i) {
    std::vector<std::size_t>& cells = by_scenario[records.heads[i].scenario];
    if (cells.empty()) scenarios.push_back(records.heads[i].scenario);
    cells.push_back(i);
  }
  std::string out = fmt::format("# fp8lab: {}\n\n{}, {:.1f} s. {}\n\n", counts_of(verdicts_of(records)), run.date,
                                run.seconds, for_markdown(run.environment));
  if (!run.complete)
    out += fmt::format("**Stopped before its end: {} of {} cells finished.**\n\n", records.size(), run.planned);
  constexpr std::size_t kMostUnseen = 5;
  for (std::size_t i = 0; i < run.unseen_fixes.size() && i < kMostUnseen; ++i)
    out += fmt::format("**{}**\n\n", for_markdown(run.unseen_fixes[i].text));
  if (run.unseen_fixes.size() > kMostUnseen)
    out += fmt::format("**and {} whose cells show no fix: `unseen_fixes` of results.json**\n\n",
                       counted(run.unseen_fixes.size() - kMostUnseen, "more scenario"));
  sink(out);
  write_findings(run.findings, sink);
  write_attention(records, sink);
  sink("## Figures\n\n" + fold(fmt::format("Figures of {} of {}", counted(records.size(), "cell"),
                                           counted(scenarios.size(), "scenario"))));
  sink("MiB is 2^20 bytes; exact bytes are in parentheses; – is an absent figure.\n\n");
  for (const std::string& scenario : scenarios) write_scenario(records, by_scenario[scenario], sink);
  sink(kFoldEnd);
}

}  // namespace fp8lab
