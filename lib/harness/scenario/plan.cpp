#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/scenario/rules.h"
#include "harness/scenario/scenario.h"
#include "harness/scenario/scenario_reader.h"
#include "harness/scenario/script_arguments.h"
#include "harness/scenario/unread_keys.h"

namespace fp8lab {
namespace {

/// The place of `key`; of several ("model.seq x model.batch"), the place of the first.
Place place_of(const Scenario& scenario, const std::string& keys) {
  const std::string key = keys.substr(0, keys.find(' '));
  // A key that was left out has no place: point to its section, or else to the beginning of the file.
  const auto it = scenario.places.find(key);
  if (it != scenario.places.end()) return it->second;
  const std::string section = key.substr(0, key.find('.'));
  for (const auto& [path, place] : scenario.places)
    if (path == section || path.starts_with(section + ".")) return place;
  return {1, 1};
}

/// The rules that cells break, each with the first cell that breaks it.
class BrokenCells {
 public:
  BrokenCells(const Scenario& scenario, const Vocabulary& vocabulary, Mistakes& mistakes)
      : scenario_(scenario), vocabulary_(vocabulary), mistakes_(mistakes) {}

  void check(const CellConfig& cell) {
    std::vector<BrokenRule> rules = broken_rules(cell, vocabulary_);
    if (lacks_heads(cell)) rules.push_back({"model.heads", missing_heads(cell)});
    for (const BrokenRule& broken : rules) {
      if (!seen_.emplace(broken.key, broken.rule).second) continue;
      const std::string of = cell.axes.empty() ? "" : fmt::format(" (cell {})", cell.id);
      mistakes_.collect([&] {
        throw ScenarioError(scenario_.file, place_of(scenario_, broken.key),
                            fmt::format("`{}`: {}{}", broken.key, broken.rule, of));
      });
    }
  }

  /// Checks what all cells together say: groups of metrics that compare values need a cell that computes some.
  void check_measure(const std::vector<PlannedCell>& cells) {
    const auto& computes = vocabulary_.computes_values;
    if (!computes || std::ranges::any_of(cells, [&](const auto& cell) { return computes(cell.config.device); })) return;
    for (const std::string& group : scenario_.base.measure)
      if (is_of_values(group))
        mistakes_.collect([&] {
          throw ScenarioError(scenario_.file, place_of(scenario_, "measure"),
                              fmt::format("`measure`: {} compares values, but every cell is on device {}, which "
                                          "computes none; add a cell on `device: cpu`, or remove {}",
                                          group, cells.front().config.device, group));
        });
  }

 private:
  /// True if the cell's layer has attention, and the file does not give its heads.
  bool lacks_heads(const CellConfig& cell) const {
    return !is_script(cell) && vocabulary_.attends && vocabulary_.attends(cell.model.layer) &&
           !scenario_.places.contains("model.heads");
  }

  static std::string missing_heads(const CellConfig& cell) {
    constexpr std::int64_t kUsualWidth = 128;
    const std::int64_t heads = cell.model.hidden % kUsualWidth == 0 ? cell.model.hidden / kUsualWidth : 1;
    return fmt::format("missing; {} has attention; write `heads: {}`, or the number of the model", cell.model.layer,
                       std::max<std::int64_t>(heads, 1));
  }

  const Scenario& scenario_;
  const Vocabulary& vocabulary_;
  std::set<std::pair<std::string, std::string>> seen_;
  Mistakes& mistakes_;
};

/// Why the device cannot run the cell, or "". If a library runs, its worker is asked.
std::string device_reason(const CellConfig& cell, const Vocabulary& vocabulary) {
  const Term* device = find_term(vocabulary.devices, cell.device);
  if (!device || is_library(cell)) return "";
  if (std::string reason = device->why_unavailable(); !reason.empty()) return reason;
  const std::string_view arch = device->own_arch ? device->own_arch() : std::string_view();
  return arch.empty() || arch == cell.arch ? "" : fmt::format("the GPU is '{}', not '{}'", arch, cell.arch);
}

/// Paths of files and folders are relative to the scenario's folder.
void resolve_paths(const std::string& scenario, CellConfig& cell) {
  const std::filesystem::path folder = std::filesystem::path(scenario).parent_path();
  std::string& corpus = cell.training.corpus;
  for (std::string* file : {&corpus, &cell.script.path, &cell.script.patch_before, &cell.script.patch_after})
    if (!file->empty()) *file = (folder / *file).string();
  for (std::string* version : {&cell.versions.before, &cell.versions.after})
    if (is_folder(*version) && !folder.empty()) {
      const std::string path = (folder / *version).lexically_normal().string();
      *version = is_folder(path) ? path : "./" + path;
    }
}

/// The bytes of one cell's copy of the entry.
std::size_t bytes_of(const Expectation& e) { return sizeof e + e.metric.size() + e.status.size() + e.signal.size(); }
std::size_t bytes_of(const Claim& c) {
  return sizeof c + c.source.size() + c.words.size() + c.metric.size() + c.unit.size() + c.note.size();
}

/// True if `cell` gates the figure itself, or expects an arm of the figure to end without one.
bool has_gate_of(const PlannedCell& cell, Side side, std::string_view metric) {
  const auto is_of = [side](Side arm) { return arm == side || (side == Side::kDifference && arm != Side::kBf16); };
  return std::ranges::any_of(cell.expect, [&](const Expectation& e) {
    return e.comparison == Comparison::kEnds ? e.status != "ok" && is_of(e.side) : e.side == side && e.metric == metric;
  });
}

/// False if the cell has no such arm, or its device computes no such value.
bool can_gate(const CellConfig& cell, const Expectation& entry, const Vocabulary& vocabulary) {
  const bool needs_before = entry.side == Side::kBefore || entry.side == Side::kDifference;
  return (has_before(cell) || !needs_before) &&
         (!vocabulary.computes_values || vocabulary.computes_values(cell.device) ||
          !find_metric(entry.metric)->is_of_values());
}

/// Copies a scenario's expectations, claims and skip reasons into the cells that they match. Every cell gets copies of
/// its own, so the sum of their bytes is limited.
class Copies {
 public:
  Copies(const Scenario& scenario, const PointIndex& points) : scenario_(scenario), points_(points) {
    std::size_t each = sizeof(PlannedCell) + scenario.title.size();
    for (const std::string& text : scenario.upstream) each += sizeof text + text.size();
    take(points.points().size(), each);
  }

  /// Copies each entry into the cells that it matches. `cells` are in the order of the points.
  template <class Entry>
  void give(const std::vector<Entry>& entries, std::vector<Entry> PlannedCell::* list,
            std::vector<PlannedCell>& cells) {
    std::vector<std::vector<std::size_t>> matching;
    for (const Entry& entry : entries) {
      matching.push_back(points_.matching(entry.when.terms));
      take(matching.back().size(), bytes_of(entry));
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Entry copy = entries[i];
      copy.when = {};  // it matches; nothing reads it again
      for (const std::size_t cell : matching[i]) (cells[cell].*list).push_back(copy);
    }
  }

  /// Gives each entry of `otherwise` to the cells that have no entry about its metric and arm, but could have one.
  void give_otherwise(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, Mistakes& mistakes) {
    for (const Expectation& entry : scenario_.otherwise) {
      std::size_t given = 0;
      for (PlannedCell& cell : cells) {
        if (has_gate_of(cell, entry.side, entry.metric) || !can_gate(cell.config, entry, vocabulary)) continue;
        cell.expect.push_back(entry);
        ++given;
      }
      take(given, bytes_of(entry));
      if (given == 0)
        mistakes.collect([&] {
          throw ScenarioError(scenario_.file, {entry.line, 1},
                              fmt::format("`expect.otherwise` has no effect: every cell has an entry about {} {}; "
                                          "remove it",
                                          name(entry.side), entry.metric));
        });
    }
  }

  /// Sets the reason of skipped cells: the reason of the first rule that matches.
  void give_reasons(const std::vector<SkipRule>& rules, std::vector<PlannedCell>& cells) {
    for (const SkipRule& rule : rules) {
      std::vector<std::size_t> matching = points_.matching(rule.when.terms);
      std::erase_if(matching, [&](std::size_t cell) { return !cells[cell].skip_reason.empty(); });
      take(matching.size(), rule.reason.size());
      for (const std::size_t cell : matching) cells[cell].skip_reason = rule.reason;
    }
  }

 private:
  void take(std::size_t copies, std::size_t bytes) {
    constexpr std::size_t kMostBytes = std::size_t{512} << 20;
    taken_ += copies * bytes;
    if (taken_ > kMostBytes)
      throw ScenarioError(
          scenario_.file, place_of(scenario_, "matrix"),
          fmt::format("`matrix`: {} cells, with their texts of the file, need more than {} bytes; shorten the "
                      "axes or the lists of expectations and claims, or write several files",
                      points_.points().size(), kMostBytes));
  }

  const Scenario& scenario_;
  const PointIndex& points_;
  std::size_t taken_ = 0;
};

Side side_of(Arm arm) {
  return *std::ranges::find(kSides, name(arm), [](Side side) { return name(side); });
}

/// Nothing if the gate does not apply to the arm.
std::optional<Expectation> implied(const GroupGate& gate, const CellConfig& cell, Arm arm, int line,
                                   const Vocabulary& vocabulary) {
  if ((arm == Arm::kBefore && !gate.of_before) || (gate.applies && !gate.applies(cell))) return std::nullopt;
  if (gate.of_values && (!vocabulary.why_absent || !vocabulary.computes_values(cell.device) ||
                         !vocabulary.why_absent(cell, arm, gate.metric).empty()))
    return std::nullopt;
  Expectation out;
  out.low = gate.value;
  if (gate.has_floor) {
    const std::optional<double> floor = vocabulary.floor ? vocabulary.floor(cell, arm, gate.metric) : std::nullopt;
    if (!floor) return std::nullopt;
    out.comparison = Comparison::kAtLeast;
    out.low = *floor;
  }
  out.side = side_of(arm);
  out.metric = gate.metric;
  out.predicted = gate.predicted;
  out.line = line;
  out.of_group = true;
  return out;
}

/// The gates that the groups of metrics which `cell` measures have in every arm that it runs.
std::vector<Expectation> implied_gates(const PlannedCell& cell, int line, const Vocabulary& vocabulary) {
  std::vector<Expectation> out;
  if (is_script(cell.config)) return out;  // what a program of the user's must not do, its scenario states
  for (const Arm arm : arms_of(cell, vocabulary)) {
    if (arm == Arm::kBefore && cell.config.control == Control::kPlanted) continue;  // its figures are wrong on purpose
    const Side side = side_of(arm);
    for (const MetricGroup& group : metric_groups()) {
      if (std::ranges::find(cell.config.measure, group.name) == cell.config.measure.end()) continue;
      for (const GroupGate& gate : group.gates) {
        if ((is_library(cell.config) && !gate.of_libraries) || has_gate_of(cell, side, gate.metric)) continue;
        if (auto expectation = implied(gate, cell.config, arm, line, vocabulary))
          out.push_back(std::move(*expectation));
      }
    }
  }
  return out;
}

/// Records what only scripts have, and what they do not have.
void check_script_entries(const Scenario& scenario, bool any_script, Mistakes& mistakes) {
  for (const char* key : {"arguments", "patch"})
    if (!any_script && scenario.places.contains(key))
      mistakes.collect([&] {
        throw ScenarioError(scenario.file, scenario.places.at(key),
                            fmt::format("`{}` has no effect: no cell has `subject: script`; remove it, or write the "
                                        "subject",
                                        key));
      });
  if (scenario.base.subject != "script") return;
  for (const Expectation& e : scenario.expect)
    if (e.side == Side::kBf16 || e.of == Arm::kBf16)
      mistakes.collect([&] {
        throw ScenarioError(scenario.file, {e.line, 1},
                            "`expect`: a script has no bf16 arm; name before or after, and run BF16 by an argument");
      });
}

}  // namespace

std::vector<Arm> arms_of(const PlannedCell& cell, const Vocabulary& vocabulary) {
  std::vector<Arm> arms;
  if (has_before(cell.config)) arms.push_back(Arm::kBefore);
  arms.push_back(Arm::kAfter);
  const auto names_bf16 = [](const auto& entry) { return entry.side == Side::kBf16; };
  if (is_script(cell.config)) return arms;
  if ((any_group(cell.config.measure, &MetricGroup::compared_with_bf16) &&
       vocabulary.quantizes(cell.config.training.recipe)) ||
      std::any_of(cell.expect.begin(), cell.expect.end(), names_bf16) ||
      std::any_of(cell.expect.begin(), cell.expect.end(), [](const Expectation& e) { return e.of == Arm::kBf16; }) ||
      std::any_of(cell.claims.begin(), cell.claims.end(), names_bf16))
    arms.push_back(Arm::kBf16);
  return arms;
}

std::vector<PlannedCell> plan_cells(const Scenario& scenario, const Vocabulary& vocabulary) {
  const PointIndex points(expand(scenario.matrix));
  Copies copies(scenario, points);
  std::vector<PlannedCell> cells;
  std::set<std::string> ids;
  Mistakes mistakes;
  BrokenCells broken(scenario, vocabulary, mistakes);
  UnreadKeys unread(scenario, vocabulary);
  const int line = place_of(scenario, "name").line;
  bool any_script = false;
  for (const Axes& axes : points.points()) {
    PlannedCell cell;
    cell.config = scenario.base;
    cell.config.axes = axes;
    cell.config.id = cell_id(scenario.name, axes);
    for (const auto& [axis, text] : axes) {
      const Key* key = find_key(axis);
      key->set(cell.config, *value_of(*key, text, vocabulary));
    }
    if (!ids.insert(cell.config.id).second)
      throw ScenarioError(scenario.file, place_of(scenario, "include"),
                          fmt::format("`include` makes the cell {} a second time", cell.config.id));
    resolve_paths(scenario.file, cell.config);
    unread.drop(cell);
    any_script |= is_script(cell.config);
    if (is_script(cell.config))
      fill_arguments(cell.config);
    else
      cell.config.script = {};
    broken.check(cell.config);
    cell.file = scenario.file;
    cell.line = line;
    cell.title = scenario.title;
    cell.upstream = scenario.upstream;
    for (const FixTerm& fix : vocabulary.fixes)
      if (fix.name == cell.config.fix) {
        cell.counterfactual = fix.counterfactual;
        if (cell.upstream.empty()) cell.upstream = fix.upstream;
      }
    cell.timeout_s = scenario.timeout_s;
    cells.push_back(std::move(cell));
  }
  broken.check_measure(cells);
  check_script_entries(scenario, any_script, mistakes);
  unread.report(mistakes);
  mistakes.throw_all();
  copies.give(scenario.expect, &PlannedCell::expect, cells);
  copies.give_otherwise(cells, vocabulary, mistakes);
  mistakes.throw_all();
  copies.give(scenario.claims, &PlannedCell::claims, cells);
  copies.give_reasons(scenario.skip_if, cells);
  const int measure = place_of(scenario, "measure").line;
  for (PlannedCell& cell : cells)
    std::ranges::move(implied_gates(cell, measure, vocabulary), std::back_inserter(cell.expect));
  for (PlannedCell& cell : cells) {
    if (!cell.skip_reason.empty()) continue;
    if (is_script(cell.config)) cell.files_checksum = checksum_of_files(cell.config.script);
    if (vocabulary.text_checksum) cell.text_checksum = vocabulary.text_checksum(cell.config);
    cell.skip_reason = device_reason(cell.config, vocabulary);
    if (cell.skip_reason.empty() && vocabulary.lacks) cell.skip_reason = vocabulary.lacks(cell.config);
    cell.skipped_here = !cell.skip_reason.empty();
  }
  return cells;
}

}  // namespace fp8lab
