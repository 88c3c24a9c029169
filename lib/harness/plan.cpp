#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "harness/keys.h"
#include "harness/rules.h"
#include "harness/scenario.h"

namespace fp8lab {
namespace {

Place place_of(const Scenario& scenario, const std::string& key) {
  // A key that was left out is missed where its section begins, or failing that the file.
  const auto it = scenario.places.find(key);
  if (it != scenario.places.end()) return it->second;
  const std::string section = key.substr(0, key.find('.'));
  for (const auto& [path, place] : scenario.places)
    if (path == section || path.starts_with(section + ".")) return place;
  return {1, 1};
}

void check_cell(const Scenario& scenario, const CellConfig& cell, const Vocabulary& vocabulary) {
  std::optional<BrokenRule> broken = broken_general_rule(cell, vocabulary);
  if (!broken && vocabulary.broken_rule) broken = vocabulary.broken_rule(cell);
  if (!broken) return;
  const std::string of = cell.axes.empty() ? "" : fmt::format(" (cell {})", cell.id);
  throw ScenarioError(scenario.file, place_of(scenario, broken->key),
                      fmt::format("`{}`: {}{}", broken->key, broken->rule, of));
}

std::string skip_reason(const Scenario& scenario, const CellConfig& cell, const Vocabulary& vocabulary) {
  for (const SkipRule& rule : scenario.skip_if)
    if (rule.when.holds(cell.axes)) return rule.reason;
  const Term* device = find_term(vocabulary.devices, cell.device);
  if (!device) return "";
  if (std::string reason = device->why_unavailable(); !reason.empty()) return reason;
  const std::string_view arch = device->own_arch ? device->own_arch() : std::string_view();
  return arch.empty() || arch == cell.arch ? "" : fmt::format("the card is '{}', not '{}'", arch, cell.arch);
}

}  // namespace

std::vector<PlannedCell> plan_cells(const Scenario& scenario, const Vocabulary& vocabulary) {
  std::vector<PlannedCell> cells;
  std::set<std::string> ids;
  for (const Axes& axes : expand(scenario.matrix)) {
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
    check_cell(scenario, cell.config, vocabulary);
    cell.file = scenario.file;
    cell.line = place_of(scenario, "name").line;
    cell.title = scenario.title;
    cell.upstream = scenario.upstream;
    for (const Expectation& expectation : scenario.expect)
      if (expectation.when.holds(axes)) cell.expect.push_back(expectation);
    for (const Claim& claim : scenario.claims)
      if (claim.when.holds(axes)) cell.claims.push_back(claim);
    cell.skip_reason = skip_reason(scenario, cell.config, vocabulary);
    cell.timeout_s = scenario.timeout_s;
    cells.push_back(std::move(cell));
  }
  return cells;
}

}  // namespace fp8lab
