#include "harness/results/job/annotations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

/// The path by which GitHub names a file.
std::string path_in_repository(const std::string& file) {
  const std::filesystem::path path = std::filesystem::absolute(file).lexically_normal();
  const char* workspace = std::getenv("GITHUB_WORKSPACE");
  for (const std::filesystem::path& top :
       {std::filesystem::path(workspace == nullptr ? "" : workspace), std::filesystem::current_path()}) {
    const std::filesystem::path below = top.empty() ? top : path.lexically_relative(top);
    if (!below.empty() && *below.begin() != "..") return below.string();
  }
  return file;
}

/// `text` with escapes for the characters that end a part of a workflow command early.
std::string for_command(const std::string& text, std::string_view more = "") {
  std::string out;
  for (const char c : printable(text, "\n"))
    if (c == '%' || c == '\n' || more.find(c) != std::string_view::npos)
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    else
      out += c;
  return out;
}

}  // namespace

bool on_github() {
  const char* value = std::getenv("GITHUB_ACTIONS");
  return value != nullptr && std::string_view(value) == "true";
}

std::string annotation(std::string_view kind, const std::string& title, const std::string& message,
                       const std::string& file, int line) {
  std::string place;
  if (!file.empty()) place = fmt::format("file={},", for_command(file, ":,"));
  if (!file.empty() && line > 0) place += fmt::format("line={},", line);
  return fmt::format("::{} {}title={}::{}", kind, place, for_command(title, ":,"), for_command(message));
}

std::vector<Complaint> complaints(const JobReport& report) {
  std::vector<Complaint> out;
  std::map<std::tuple<std::string, int, std::string>, std::pair<std::size_t, std::size_t>> places;  // index, count
  const auto add = [&](const std::string& file, int line, std::string_view title, const std::string& id,
                       const std::string& text) {
    const auto [at, added] = places.try_emplace({file, line, std::string(title)}, out.size(), 1);
    if (added)
      out.push_back({path_in_repository(file), line, std::string(title), fmt::format("{}: {}", id, text)});
    else
      ++at->second.second;
  };
  for (std::size_t i = 0; i < report.records.size(); ++i) {
    const RecordList::Head& head = report.records.heads[i];
    if (is_good(head.verdict) || head.undecided_control) continue;
    const CellRecord record = report.records.read(i);
    add(record.file, line_of_failure(record), name(record.verdict), head.id, record.reason);
  }
  if (report.comparison)
    for (const Change& change : report.comparison->changes)
      if (change.is_regression()) add(change.file, change.line, "regression", change.id, text_of(change));
  for (const auto& [place, found] : places)
    if (found.second > 1) out[found.first].message += fmt::format(" (and {} more like it)", found.second - 1);
  return out;
}

std::string complaint_lines(const JobReport& report, bool github) {
  std::vector<std::string> lines;
  for (const Complaint& one : complaints(report)) {
    const std::string place = one.line > 0 ? fmt::format("{}:{}", one.file, one.line) : one.file;
    lines.push_back(github ? annotation("error", "fp8lab: " + one.title, one.message, one.file, one.line)
                           : for_terminal(fmt::format("{}: error: {}: {}", place, one.title, one.message)));
  }
  if (github && (report.code == 5 || (report.code != 0 && lines.empty()))) {
    std::string text = report.meaning;
    for (const std::string& error : report.errors) text += "; " + error;
    lines.insert(lines.begin(), annotation("error", report.title, text));
  }
  if (github && lines.size() > kMostAnnotations) {
    const std::size_t rest = lines.size() - (kMostAnnotations - 1);
    lines.resize(kMostAnnotations - 1);
    lines.push_back(annotation("error", report.title, fmt::format("and {} more; see the summary", rest)));
  }
  return lines.empty() ? "" : fmt::format("{}\n", fmt::join(lines, "\n"));
}

std::string cells_of_other_scenarios(const RunComparison& comparison) {
  constexpr std::size_t kMostNamed = 5;
  std::string out;
  for (const auto& [kind, words] :
       {std::pair(ChangeKind::kRedefined, "redefined: figures and verdicts are not gated"),
        std::pair(ChangeKind::kGates, "with other gates: a better verdict counts as no better")}) {
    std::vector<std::string> ids;
    for (const Change& change : comparison.changes)
      if (change.kind == kind && !change.allowed) ids.push_back(change.id);
    if (ids.empty()) continue;
    const std::size_t named = std::min(ids.size(), kMostNamed);
    out += fmt::format("{}{} {} ({}{})", out.empty() ? "" : "; ", counted(ids.size(), "cell"), words,
                       fmt::join(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                       ids.size() > named ? fmt::format(" and {} more", ids.size() - named) : "");
  }
  return out;
}

}  // namespace fp8lab
