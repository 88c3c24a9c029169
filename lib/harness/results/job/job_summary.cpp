#include "harness/results/job/job_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/results/reports.h"

namespace fp8lab {
namespace {

/// A table of Markdown with the first rows. `rows`: of Markdown.
std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  constexpr std::size_t kMostRows = 50;
  const auto line = [](const auto& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); };
  std::string out = line(head) + line(std::vector<std::string>(head.size(), "---"));
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) out += line(rows[i]);
  if (rows.size() > kMostRows) out += fmt::format("\n… and {} more.\n", rows.size() - kMostRows);
  return out + "\n";
}

std::string headline(const JobReport& report) {
  const char* sign = report.code == 0 ? "✅" : report.code == 3 || report.code == 5 ? "⚠️" : "❌";
  std::string out =
      fmt::format("# {} {}: {}\n\nExit {}: {}. {:.0f} s.\n\n", sign, for_markdown(report.title),
                  counts_of(verdicts_of(report.records)), report.code, for_markdown(report.meaning), report.seconds);
  for (const std::string& error : report.errors) out += fmt::format("- {}\n", for_markdown(error));
  return out + (report.errors.empty() ? "" : "\n");
}

std::string comparison_section(const JobReport& report) {
  if (report.comparison == nullptr) return "";
  const RunComparison& comparison = *report.comparison;
  std::vector<std::vector<std::string>> worse, accepted, others;
  std::size_t appeared = 0;
  const auto row = [](const std::string& id, const std::string& text) {
    return std::vector<std::string>{for_markdown_code(id), for_markdown(text)};
  };
  for (const Change& change : comparison.changes) {
    appeared += change.kind == ChangeKind::kAppeared;
    if (change.is_regression()) worse.push_back(row(change.id, text_of(change)));
  }
  for (const ChangeKind kind : {ChangeKind::kRedefined, ChangeKind::kGates, ChangeKind::kFigure})
    for (const Change& change : comparison.changes)
      if (change.kind == kind && (kind != ChangeKind::kFigure || !change.gated))
        others.push_back(row(change.id, text_of(change)));
  for (const AcceptedChange& change : report.accepted) {
    accepted.push_back(row(change.id, change.text));
    accepted.back().insert(accepted.back().end(), {change.expires, for_markdown(change.why)});
  }
  std::string out = fmt::format(
      "## Against the baseline: {} regressions\n\n{} cells compared; {} figures better, {} cells new. Timings are not "
      "judged.\n\n",
      comparison.regressions(), comparison.cells_compared, comparison.count(Direction::kBetter), appeared);
  if (!worse.empty()) out += table({"cell", "worse"}, worse);
  if (!accepted.empty())
    out += fmt::format("{} changes accepted.\n\n", accepted.size()) +
           table({"cell", "accepted", "until", "why"}, accepted);
  if (const std::string text = cells_of_other_scenarios(comparison); !text.empty())
    out += for_markdown(text) + ".\n\n" + table({"cell", "redefined or other gates; figures are not gated"}, others);
  return out;
}

/// A row for each scenario, those with a cell that is not good first.
std::string scenarios_section(const RecordList& records) {
  struct Scenario {
    std::string name;
    std::vector<Verdict> verdicts;
    bool good = true;
    double seconds = 0;
  };
  std::vector<Scenario> scenarios;
  std::map<std::string, std::size_t> places;
  for (const RecordList::Head& head : records.heads) {
    const auto [place, added] = places.try_emplace(head.scenario, scenarios.size());
    if (added) scenarios.push_back({head.scenario, {}, true, 0});
    Scenario& scenario = scenarios[place->second];
    scenario.verdicts.push_back(head.verdict);
    scenario.good = scenario.good && (is_good(head.verdict) || head.undecided_control);
    scenario.seconds += head.seconds;
  }
  if (scenarios.empty()) return "";
  std::ranges::stable_sort(scenarios, {}, &Scenario::good);
  std::vector<std::vector<std::string>> rows;
  for (const Scenario& one : scenarios)
    rows.push_back({for_markdown(one.name), std::to_string(one.verdicts.size()), counts_of(one.verdicts),
                    fmt::format("{:.1f}", one.seconds)});
  return "## Scenarios\n\n" + table({"scenario", "cells", "verdicts", "seconds"}, rows);
}

/// The beginning of the next line that begins with `mark`, from `from` on; the end of the text if there is none.
std::size_t find_line(const std::string& text, const std::string& mark, std::size_t from) {
  if (from == 0 && text.starts_with(mark)) return 0;
  const std::size_t at = text.find("\n" + mark, from == 0 ? 0 : from - 1);
  return at == std::string::npos ? text.size() : at + 1;
}

/// A text of sections in the bytes that are left.
class Room {
 public:
  explicit Room(std::size_t bytes) : bytes_(bytes) {}

  /// All full sections, which begin with `mark`, that fit.
  std::string take(const std::string& text, const std::string& mark) {
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = find_line(text, mark, at + 1);
      if (end == at && next <= bytes_)
        end = next;
      else
        ++left_out_;
      at = next;
    }
    bytes_ -= end;
    return text.substr(0, end);
  }
  void keep(std::size_t bytes) { bytes_ -= std::min(bytes, bytes_); }
  std::size_t left_out() const { return left_out_; }

 private:
  std::size_t bytes_;
  std::size_t left_out_ = 0;
};

}  // namespace

std::string job_summary(const JobReport& report, const std::string& summary, std::size_t budget) {
  constexpr std::string_view kNote =
      "\n{} more sections do not fit here; `summary.md` among the run's files holds all.\n";
  constexpr std::string_view kFold = "<details><summary>Every figure</summary>\n\n", kFoldEnd = "\n</details>\n";
  Room room(budget);
  room.keep(kNote.size() + 16);
  std::string out = room.take(headline(report) + comparison_section(report) + scenarios_section(report.records), "## ");
  const std::string attention_begins = "## Needs attention\n";
  std::size_t first = find_line(summary, attention_begins, 0);
  if (first < summary.size()) {
    const std::size_t end = find_line(summary, "## ", first + attention_begins.size());
    out += room.take(summary.substr(first, end - first), "### ");
    first = end;
  } else {
    first = find_line(summary, "## ", 0);
  }
  room.keep(kFold.size() + kFoldEnd.size());
  if (const std::string figures = room.take(summary.substr(first), "## "); !figures.empty())
    out += fmt::format("{}{}{}", kFold, figures, kFoldEnd);
  return out + (room.left_out() > 0 ? fmt::format(fmt::runtime(kNote), room.left_out()) : "");
}

std::string append_job_summary(const JobReport& report, const std::string& summary) {
  constexpr std::size_t kLeast = 4096;  // in less room a summary is useless
  const char* path = std::getenv("GITHUB_STEP_SUMMARY");
  if (path == nullptr || *path == '\0') return "";
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  const std::size_t taken = error ? 0 : static_cast<std::size_t>(size);
  if (taken + kLeast > kMostSummaryBytes) return "";
  errno = 0;
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << job_summary(report, summary, kMostSummaryBytes - taken) << std::flush;
  if (file) return "";
  return fmt::format("$GITHUB_STEP_SUMMARY ({}) cannot be written: {}", path, std::strerror(errno));
}

}  // namespace fp8lab
