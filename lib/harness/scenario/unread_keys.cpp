#include "harness/scenario/unread_keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace fp8lab {

UnreadKeys::UnreadKeys(const Scenario& scenario, const Vocabulary& vocabulary)
    : scenario_(scenario), vocabulary_(vocabulary) {
  for (const std::string& axis : scenario.matrix.axis_names())
    given_.push_back({.key = find_key(axis), .place = scenario.places.at(std::string(find_key(axis)->path))});
  for (const auto& [key, place] : scenario.given)
    if (const auto row = std::ranges::find(given_, key, &Given::key); row != given_.end())
      row->of_base = true;
    else
      given_.push_back({.key = key, .place = place, .of_base = true});
}

bool UnreadKeys::is_axis(const std::string& name) const {
  return std::ranges::find(scenario_.matrix.axes, name, &Axis::name) != scenario_.matrix.axes.end();
}

/// "layer: linear, " if the key is an axis of the matrix, else "".
std::string UnreadKeys::term_of(const CellConfig& cell, std::string_view path) const {
  for (const auto& [axis, value] : cell.axes)
    if (find_key(axis)->path == path && is_axis(axis)) return fmt::format("{}: {}, ", axis, value);
  return "";
}

void UnreadKeys::add_value(Given& row, const CellConfig& cell, const std::string& axis, const std::string& value,
                           const Unread& unread, const std::string& twin) const {
  if (!row.seen.insert(value + unread.reason).second) return;
  const std::string remedy = twin.empty() ? "remove it from the entry of `include`"
                                          : fmt::format("write `exclude: [{{{}{}: {}}}]`, since cell {} is the same",
                                                        term_of(cell, unread.decides), axis, value, twin);
  row.values.push_back(fmt::format("`{}`: {} has no effect in cell {}: {}; {}, or {}", axis, value, cell.id,
                                   unread.reason, remedy, unread.remedy));
}

void UnreadKeys::drop(PlannedCell& cell) {
  const CellConfig before = cell.config;
  const auto axis_of = [&](const Key* key) {
    return std::ranges::find_if(before.axes, [&](const auto& axis) { return find_key(axis.first) == key; });
  };
  std::vector<const Key*> given;
  for (const Given& row : given_)
    given.push_back(row.of_base || axis_of(row.key) != before.axes.end() ? row.key : nullptr);
  const std::vector<std::optional<Unread>> unread = drop_unread(given, cell.config, vocabulary_);
  std::string read;  // the axes that the cell reads
  for (std::size_t i = 0; i < given.size(); ++i)
    if (const auto axis = axis_of(given[i]); axis != before.axes.end() && !unread[i])
      read += fmt::format("{}={},", axis->first, axis->second);
  const auto [twin, is_first] = first_with_.try_emplace(read, before.id);
  for (std::size_t i = 0; i < given.size(); ++i) {
    Given& row = given_[i];
    row.is_read |= given[i] && !unread[i];
    if (!unread[i]) continue;
    cell.unread.push_back(row.key);
    if (row.reason.empty())
      row.reason = fmt::format("{}; remove it, or {}{}", unread[i]->reason, unread[i]->remedy,
                               before.axes.empty() ? "" : fmt::format(" (cell {})", before.id));
    const auto axis = axis_of(row.key);
    if (axis == before.axes.end()) continue;
    // A value that only `include` has may say that a cell lacks what the base has.
    if (is_axis(axis->first) ? !is_first
                             : row.key->get(scenario_.base) == row.key->get(CellConfig{}) ||
                                   row.key->get(before) != row.key->get(CellConfig{}))
      add_value(row, before, axis->first, axis->second, *unread[i], is_axis(axis->first) ? twin->second : "");
  }
}

void UnreadKeys::report(Mistakes& mistakes) const {
  for (const Given& row : given_) {
    const auto add = [&](const std::string& problem) {
      mistakes.collect([&] { throw ScenarioError(scenario_.file, row.place, problem); });
    };
    if (row.is_read)
      for (const std::string& value : row.values) add(value);
    else if (!row.reason.empty())
      add(fmt::format("`{}` has no effect: {}", row.key->path, row.reason));
  }
}

std::vector<Remark> UnreadKeys::partly_read(const std::vector<PlannedCell>& cells) const {
  std::vector<Remark> out;
  for (const Given& row : given_) {
    const auto unread = static_cast<std::size_t>(std::ranges::count_if(
        cells, [&](const PlannedCell& cell) { return std::ranges::find(cell.unread, row.key) != cell.unread.end(); }));
    if (unread > 0)
      out.push_back({scenario_.file, row.place,
                     fmt::format("`{}`: read by {} of {} cells", row.key->path, cells.size() - unread, cells.size())});
  }
  return out;
}

}  // namespace fp8lab
