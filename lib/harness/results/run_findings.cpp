#include "harness/results/run_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/results/json_text.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::size_t>;

constexpr std::string_view kFailed = "failed", kUndecided = "undecided", kHeld = "held", kUnseen = "unseen";

bool is_undecided(const RecordList::Head& head) {
  return head.verdict == Verdict::kInconclusive && !head.undecided_control;
}

bool has_failed(const RecordList::Head& head) {
  return !is_good(head.verdict) && head.verdict != Verdict::kInconclusive;
}

/// The cells of one finding, in the order of the run.
struct Group {
  std::string label;  ///< a fix, or a scenario
  std::string fix;
  bool has_before = false;
  Cells cells;
};

/// Groups of cells that get a finding of their own: by fix, or else by scenario.
std::vector<Group> groups_of(const RecordList& records) {
  std::vector<Group> out;
  std::map<std::pair<bool, std::string>, std::size_t> places;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const RecordList::Head& head = records.heads[i];
    if (head.control && !has_failed(head) && !is_undecided(head)) continue;
    const bool by_fix = !head.fix.empty() && !head.control;
    const std::string& label = by_fix ? head.fix : head.scenario;
    const auto [place, added] = places.try_emplace({by_fix, label}, out.size());
    if (added) out.push_back({.label = label, .fix = by_fix ? head.fix : "", .has_before = false, .cells = {}});
    Group& group = out[place->second];
    group.has_before = group.has_before || (head.has_before && !head.control);
    group.cells.push_back(i);
  }
  return out;
}

template <class Predicate>
Cells those(const RecordList& records, const Cells& cells, Predicate predicate) {
  Cells out;
  for (const std::size_t i : cells)
    if (predicate(records.heads[i])) out.push_back(i);
  return out;
}

std::vector<std::string> scenarios_of(const RecordList& records, const Cells& cells) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const std::size_t i : cells)
    if (seen.insert(records.heads[i].scenario).second) out.push_back(records.heads[i].scenario);
  return out;
}

/// The verdict and the reason of a cell.
std::string verdict_and_reason(const CellRecord& record) {
  return record.reason.empty() ? std::string(name(record.verdict))
                               : fmt::format("{}: {}", name(record.verdict), record.reason);
}

/// A finding that `chosen` cells of a group need attention.
void set_attention(const RecordList& records, const Group& group, const Cells& chosen, std::string_view kind,
                   std::string_view verb, RunFinding& out) {
  const CellRecord record = records.read(chosen.front());
  out.kind = kind;
  out.size = static_cast<double>(chosen.size());
  out.reason = verdict_and_reason(record);
  out.cell = record.config.id;
  const std::string& on = records.heads[chosen.front()].measured_on;
  out.text = fmt::format("{}: {} of {} {}{}: {}, {}", group.label, chosen.size(), counted(out.of, "cell"), verb,
                         on == record.config.device ? "" : fmt::format(" with {}", on), record.config.id, out.reason);
}

/// ", as predicted" if the figures of every cell that shows the effect's metric have a closed form and equal it.
std::string_view as_predicted(const RecordList& records, const Cells& confirmed, const Effect& effect) {
  const bool all = std::ranges::all_of(confirmed, [&](std::size_t i) {
    const std::optional<Effect>& other = records.heads[i].effect;
    return !other || other->metric != effect.metric || other->as_predicted;
  });
  return all && effect.as_predicted ? ", as predicted" : "";
}

/// What measured the cells: "meta", "meta and cpu", beginning with the cell `first`.
std::string measured_on(const RecordList& records, const Cells& cells, std::size_t first) {
  std::vector<std::string> out{records.heads[first].measured_on};
  for (const std::size_t i : cells)
    if (std::ranges::find(out, records.heads[i].measured_on) == out.end()) out.push_back(records.heads[i].measured_on);
  return fmt::format("{}", fmt::join(out, " and "));
}

void set_effect(const RecordList& records, const Group& group, const Cells& confirmed, std::size_t undecided,
                RunFinding& out) {
  std::size_t largest = confirmed.front();
  for (const std::size_t i : confirmed) {
    const std::optional<Effect>&one = records.heads[i].effect, &other = records.heads[largest].effect;
    if (one && (!other || is_larger(*one, *other))) largest = i;
  }
  const RecordList::Head& head = records.heads[largest];
  out.cells = confirmed.size();
  out.cell = head.id;
  out.effect = head.effect;
  out.shown = true;
  out.kind = head.effect ? name(head.effect->kind) : name(EffectKind::kValues);
  out.size = head.effect ? head.effect->size : 0;
  out.text = fmt::format(
      "{}: {}{} ({} of {}, {}{})", group.label, head.effect ? head.effect->text : "before and after differ",
      head.effect ? as_predicted(records, confirmed, *head.effect) : "", out.cells, counted(out.of, "cell"),
      measured_on(records, confirmed, largest), undecided > 0 ? fmt::format("; {} inconclusive", undecided) : "");
}

void set_unseen(const RecordList& records, const Group& group, const Cells& ran, RunFinding& out) {
  out.kind = kUnseen;
  out.cell = records.heads[group.cells.front()].id;
  out.reason = ran.empty() ? fmt::format("no cell ran: {}", records.read(group.cells.front()).reason)
                           : "before and after are equal in every figure that `expect` names";
  out.text =
      fmt::format("{}: not shown by any of {}: {}", group.label, counted(group.cells.size(), "cell"), out.reason);
}

/// The finding of a group; nothing for cells without a before arm that hold, which share one.
std::optional<RunFinding> finding_of_group(const RecordList& records, const Group& group) {
  const auto is = [](Verdict verdict) {
    return [verdict](const RecordList::Head& head) { return head.verdict == verdict; };
  };
  const Cells failed = those(records, group.cells, has_failed);
  const Cells undecided = those(records, group.cells, is_undecided);
  const Cells ran = those(records, group.cells, [](const auto& head) { return head.verdict != Verdict::kSkipped; });
  const Cells confirmed = those(records, group.cells, is(Verdict::kConfirmed));
  RunFinding out;
  out.fix = group.fix;
  out.scenarios = scenarios_of(records, group.cells);
  out.of = ran.size();
  if (!failed.empty())
    set_attention(records, group, failed, kFailed, failed.size() == 1 ? "fails" : "fail", out);
  else if (!confirmed.empty())
    set_effect(records, group, confirmed, undecided.size(), out);
  else if (!undecided.empty())
    set_attention(records, group, undecided, kUndecided, undecided.size() == 1 ? "is inconclusive" : "are inconclusive",
                  out);
  else if (group.has_before)
    set_unseen(records, group, ran, out);
  else
    return std::nullopt;
  return out;
}

/// One finding for all cells without a before arm that hold their expectations.
std::optional<RunFinding> held_finding(const RecordList& records) {
  Cells cells;
  std::map<std::string, std::size_t> groups, of_libraries;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const RecordList::Head& head = records.heads[i];
    if (head.control || head.verdict != Verdict::kPass) continue;
    cells.push_back(i);
    for (const std::string& group : head.groups) ++groups[group];
    if (head.measured_on.find(' ') != std::string::npos) ++of_libraries[head.measured_on];
  }
  if (cells.empty()) return std::nullopt;
  std::vector<std::pair<std::string, std::size_t>> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(sorted, std::greater<>(), &std::pair<std::string, std::size_t>::second);
  std::vector<std::string> words;
  for (const auto& [group, count] : sorted) words.push_back(fmt::format("{} {}", group, count));
  RunFinding out;
  out.kind = kHeld;
  out.scenarios = scenarios_of(records, cells);
  out.cells = out.of = cells.size();
  out.size = static_cast<double>(cells.size());
  out.cell = records.heads[cells.front()].id;
  out.shown = true;
  std::string libraries;
  for (const auto& [library, count] : of_libraries) libraries += fmt::format(", {} of them with {}", count, library);
  out.text = fmt::format("without a before arm: {} of {} as expected{}{}{}", counted(cells.size(), "cell"),
                         counted(out.scenarios.size(), "scenario"), libraries,
                         words.empty() ? "" : "; their gates are on ", fmt::join(words, ", "));
  return out;
}

int rank_of(const RunFinding& finding) {
  if (finding.kind == kFailed) return 0;
  if (finding.kind == kUndecided) return 1;
  if (finding.kind == kHeld) return 3;
  return finding.kind == kUnseen ? 4 : 2;
}

bool comes_before(const RunFinding& a, const RunFinding& b) {
  if (rank_of(a) != rank_of(b)) return rank_of(a) < rank_of(b);
  if (a.effect && b.effect) return is_larger(*a.effect, *b.effect);
  if (a.effect.has_value() != b.effect.has_value()) return a.effect.has_value();
  return a.size > b.size;
}

Json number_or_null(const std::optional<double>& value) {
  // Bytes are integers, and a double is written as one only if it is.
  if (!value) return nullptr;
  if (std::abs(*value) < 9007199254740992.0 && *value == std::trunc(*value)) return static_cast<std::int64_t>(*value);
  return *value;
}

std::string cut(const std::string& text) {
  constexpr std::size_t kLongest = 300;
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + " ...";
}

}  // namespace

std::vector<RunFinding> run_findings(const RecordList& records) {
  std::vector<RunFinding> out;
  for (const Group& group : groups_of(records))
    if (std::optional<RunFinding> finding = finding_of_group(records, group)) out.push_back(std::move(*finding));
  if (std::optional<RunFinding> held = held_finding(records)) out.push_back(std::move(*held));
  std::ranges::stable_sort(out, comes_before);
  return out;
}

std::string findings_to_json(const std::vector<RunFinding>& findings) {
  Json out = Json::array();
  for (const RunFinding& finding : findings) {
    const Effect none, &effect = finding.effect ? *finding.effect : none;
    out.push_back({{"text", finding.text},
                   {"kind", finding.kind},
                   {"fix", text_or_null(finding.fix)},
                   {"scenarios", finding.scenarios},
                   {"metric", text_or_null(effect.metric)},
                   {"unit", text_or_null(effect.unit)},
                   {"before", number_or_null(effect.before)},
                   {"after", number_or_null(effect.after)},
                   {"predicted", number_or_null(effect.predicted)},
                   {"effect", number_or_null(finding.size)},
                   {"shown", finding.shown},
                   {"reason", text_or_null(finding.reason)},
                   {"cells", finding.cells},
                   {"of", finding.of},
                   {"cell", text_or_null(finding.cell)}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> finding_lines(const std::vector<RunFinding>& findings, std::size_t most) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& text) { out.push_back(cut(for_terminal(text))); };
  std::vector<std::string> unseen;
  std::vector<const RunFinding*> listed_findings;
  const RunFinding* held = nullptr;
  for (const RunFinding& finding : findings)
    if (finding.kind == kUnseen)
      unseen.push_back(finding.fix.empty() ? finding.scenarios.front() : finding.fix);
    else if (finding.kind == kHeld)
      held = &finding;
    else
      listed_findings.push_back(&finding);
  std::size_t room = most - (held ? 1 : 0) - (unseen.empty() ? 0 : 1);
  if (listed_findings.size() > room) {
    --room;  // for the line that counts the rest
    for (std::size_t i = 0; i < room; ++i) add(listed_findings[i]->text);
    add(fmt::format("and {}: summary.md", counted(listed_findings.size() - room, "more finding")));
  } else {
    for (const RunFinding* finding : listed_findings) add(finding->text);
  }
  if (held) add(held->text);
  if (!unseen.empty()) {
    constexpr std::size_t kMostNames = 6;
    const std::size_t more = unseen.size() > kMostNames ? unseen.size() - kMostNames : 0;
    unseen.resize(unseen.size() - more);
    add(fmt::format("not shown by any cell of this run: {}{}", fmt::join(unseen, ", "),
                    more > 0 ? fmt::format(" and {} more", more) : ""));
  }
  return out;
}

}  // namespace fp8lab
