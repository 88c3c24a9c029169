#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/escape.h"
#include "harness/holders.h"
#include "harness/metrics.h"
#include "harness/reports.h"
#include "harness/units.h"

namespace fp8lab {
namespace {

constexpr std::size_t kMostHolders = 12;
constexpr std::string_view kAlwaysShown[] = {"memory.retained_bytes", "memory.peak_bytes"};

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

/// The cell's axes, without the scenario's name.
std::string point_of(const CellRecord& record) {
  const std::string& id = record.config.id;
  const std::size_t slash = id.find('/');
  return slash == std::string::npos ? "(one cell)" : id.substr(slash + 1);
}

/// Metrics worth a row: what the run is about, and what the scenario's gates and claims name.
std::vector<std::string> metrics_of(const CellRecord& record) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view metric) {
    const bool present = std::any_of(record.arms.begin(), record.arms.end(), [&](const auto& arm) {
      return arm.second.metrics.find(std::string(metric)) != arm.second.metrics.end();
    });
    if (present && std::find(out.begin(), out.end(), metric) == out.end()) out.emplace_back(metric);
  };
  for (const std::string_view metric : kAlwaysShown) add(metric);
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

std::string attention(const std::vector<CellRecord>& records) {
  std::string out;
  for (const CellRecord& record : records) {
    if (is_good(record.verdict)) continue;
    if (out.empty()) out = "## Needs attention\n\n";
    out += fmt::format("### {}: {}\n\n{}\n\n{}", name(record.verdict), for_markdown_code(record.config.id),
                       for_markdown(record.reason), gate_lines(record));
    for (const auto& [arm, result] : record.arms)
      if (!result.output_tail.empty())
        out += fmt::format("\nThe {} arm printed, at last:\n\n{}", name(arm), for_markdown_block(result.output_tail));
    out += "\n";
  }
  return out;
}

std::string figures(const std::vector<const CellRecord*>& cells) {
  std::string out =
      table_head({"cell", "verdict", "metric", "before", "after", "BF16", "predicted before", "predicted after"});
  for (const CellRecord* record : cells) {
    const std::vector<std::string> metrics = metrics_of(*record);
    if (metrics.empty())
      out += row({point_of(*record), std::string(name(record->verdict)), record->reason, "", "", "", "", ""});
    bool first = true;
    for (const std::string& metric : metrics) {
      const std::string_view unit = unit_of(metric);
      const auto value = [&](Side side) { return shown(measured(record->arms, side, metric).value, unit); };
      const auto closed = [&](Side side) { return shown(predicted(record->arms, side, metric).value, unit); };
      out += row({first ? point_of(*record) : "", first ? std::string(name(record->verdict)) : "", metric,
                  value(Side::kBefore), value(Side::kAfter), value(Side::kBf16), closed(Side::kBefore),
                  closed(Side::kAfter)});
      first = false;
    }
  }
  return out + "\n";
}

std::string claimed_figure(const Claim& claim) {
  const std::string_view base = unit_of(claim.metric);
  return claim.unit == base ? figure(claim.value, base) : fmt::format("{} {}", grouped(claim.value), claim.unit);
}

/// A figure in the claim's own unit, then exactly.
std::string in_claims_unit(const std::optional<double>& value, const Claim& claim) {
  if (!value || !std::isfinite(*value)) return shown(value, "1");
  const std::string_view base = unit_of(claim.metric);
  const double factor = in_base_units(claim.unit, base).value_or(1);
  if (factor == 1) return figure(*value, base);
  return fmt::format("{} {} ({} {})", grouped(std::round(*value / factor * 100) / 100), claim.unit, grouped(*value),
                     base);
}

std::string claims(const std::vector<const CellRecord*>& cells) {
  std::string out;
  for (const CellRecord* record : cells)
    for (const ClaimRecord& entry : record->claims) {
      if (record->verdict == Verdict::kSkipped) continue;
      if (out.empty())
        out = "Claims:\n\n" +
              table_head({"source", "words", "cell", "figure", "claimed", "predicted", "measured", "note"});
      const Claim& claim = entry.claim;
      out += row({claim.source, claim.words, point_of(*record), fmt::format("{} {}", name(claim.side), claim.metric),
                  claimed_figure(claim), in_claims_unit(entry.predicted, claim), in_claims_unit(entry.measured, claim),
                  claim.note});
    }
  return out.empty() ? out : out + "\n";
}

std::string holders(const std::vector<const CellRecord*>& cells) {
  std::string out;
  for (const CellRecord* record : cells)
    for (const auto& [arm, result] : record->arms) {
      if (result.retained_by_holder.empty()) continue;
      out += fmt::format("Who still holds memory after backward in {}, {}:\n\n{}", for_markdown_code(point_of(*record)),
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

/// As code.
std::vector<std::string> fixes_of(const std::vector<const CellRecord*>& cells) {
  std::set<std::string> fixes;
  for (const CellRecord* record : cells)
    if (!record->config.fix.empty()) fixes.insert(for_markdown_code(record->config.fix));
  return {fixes.begin(), fixes.end()};
}

std::string emulations(const std::vector<const CellRecord*>& cells) {
  std::map<std::string, int> counts;
  for (const CellRecord* record : cells) {
    std::set<std::string> in_cell;
    for (const auto& [arm, result] : record->arms)
      if (!result.emulated.empty()) in_cell.insert(result.emulated);
    for (const std::string& text : in_cell) ++counts[text];
  }
  std::string out;
  for (const auto& [text, count] : counts)
    out += fmt::format("Emulated in {} of {} cells: {}.\n\n", count, cells.size(), for_markdown(text));
  return out;
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

std::string summary_markdown(const std::vector<CellRecord>& records, const RunSummary& run) {
  std::vector<Verdict> verdicts;
  std::vector<std::string> scenarios;
  std::map<std::string, std::vector<const CellRecord*>> by_scenario;
  for (const CellRecord& record : records) {
    verdicts.push_back(record.verdict);
    auto& cells = by_scenario[record.config.scenario];
    if (cells.empty()) scenarios.push_back(record.config.scenario);
    cells.push_back(&record);
  }
  std::string out = fmt::format("# fp8lab: {}\n\n{}, {:.1f} s. {}\n\n", counts_of(verdicts), run.date, run.seconds,
                                for_markdown(run.environment));
  if (!run.complete)
    out += fmt::format("**Stopped before its end: {} of {} cells finished.**\n\n", records.size(), run.planned);
  out += "MiB is 2^20 bytes; exact bytes are in parentheses; – is an absent figure.\n\n";
  out += attention(records);
  for (const std::string& scenario : scenarios) {
    const auto& cells = by_scenario[scenario];
    const CellRecord& first = *cells.front();
    out += fmt::format("## {}\n\n{}", for_markdown(scenario), for_markdown(first.title));
    if (!first.upstream.empty())
      out += fmt::format(" ({})", for_markdown(fmt::format("{}", fmt::join(first.upstream, ", "))));
    if (const std::vector<std::string> fixes = fixes_of(cells); !fixes.empty())
      out += fmt::format(". {}: {}", fixes.size() == 1 ? "Fix" : "Fixes", fmt::join(fixes, ", "));
    out += "\n\n" + figures(cells) + emulations(cells) + claims(cells) + holders(cells);
  }
  return out;
}

}  // namespace fp8lab
