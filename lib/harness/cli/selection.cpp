#include "harness/cli/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/cell/spelling.h"
#include "harness/results/json_codec.h"

namespace fp8lab {
namespace {

constexpr std::string_view kScenarios = "scenarios";

void keep_matching(std::vector<PlannedCell>& cells, const std::string& filter) {
  const bool negated = filter.starts_with('-');
  const auto matches = id_matcher("--filter", filter.substr(negated ? 1 : 0));
  std::erase_if(cells, [&](const PlannedCell& cell) { return matches(cell.config.id) == negated; });
}

void keep_sample(std::vector<PlannedCell>& cells, std::size_t most) {
  std::map<std::pair<std::string, std::string>, std::set<std::pair<std::uint64_t, std::string>>> samples;
  for (const PlannedCell& cell : cells) {
    auto& sample = samples[{cell.config.scenario, cell.config.device}];
    sample.emplace(fnv1a(cell.config.id), cell.config.id);
    if (sample.size() > most) sample.erase(std::prev(sample.end()));
  }
  std::erase_if(cells, [&](const PlannedCell& cell) {
    return !samples[{cell.config.scenario, cell.config.device}].contains({fnv1a(cell.config.id), cell.config.id});
  });
}

/// Throws Error if `name`, which is no path, is the name of a bundled scenario.
void refuse_name_of_scenario(const std::string& name, const Program& program) {
  const std::string directory = bundled_directory(program);
  if (directory.empty() || name.find('/') != std::string::npos) return;
  const LoadedScenarios loaded = load_scenarios(find_scenario_files({directory}), program.vocabulary());
  const auto cell = std::ranges::find(loaded.cells, name, [](const PlannedCell& c) { return c.config.scenario; });
  if (cell == loaded.cells.end()) return;
  fail(fmt::format(
      "{}: no such file or directory; it is the name of a bundled scenario, in {}: `fp8lab run scenarios -f "
      "'^{}{}'`",
      name, cell->file, name, cell->config.id == name ? "$" : "/"));
}

}  // namespace

std::string bundled_directory(const Program& program) {
  for (const std::string& candidate : {program.scenarios_directory, std::string(kScenarios)})
    if (std::filesystem::is_directory(candidate)) return candidate;
  return "";
}

void find_bundled_scenarios(std::vector<std::string>& paths, const Program& program) {
  for (std::string& path : paths) {
    std::error_code ignored;  // whoever reads the path reports it
    if (std::filesystem::exists(path, ignored)) continue;
    const std::string rest = path.starts_with(kScenarios) ? path.substr(kScenarios.size()) : "";
    if (path == kScenarios || rest.starts_with('/')) {
      if (std::filesystem::exists(program.scenarios_directory + rest, ignored))
        path = program.scenarios_directory + rest;
    } else {
      refuse_name_of_scenario(path, program);
    }
  }
}

void check_devices(const std::vector<std::string>& devices, const Vocabulary& vocabulary) {
  const std::vector<std::string> known = names_of(vocabulary.devices);
  for (const std::string& device : devices)
    if (std::find(known.begin(), known.end(), device) == known.end())
      fail(fmt::format("--device: `{}` is not known.{}", device, suggestion(device, known)));
}

void select_cells(std::vector<PlannedCell>& cells, const RunRequest& request, const Vocabulary& vocabulary) {
  check_devices(request.devices, vocabulary);
  if (!request.devices.empty())
    std::erase_if(cells, [&](const PlannedCell& cell) {
      return std::find(request.devices.begin(), request.devices.end(), cell.config.device) == request.devices.end();
    });
  for (const std::string& filter : request.filters) keep_matching(cells, filter);
  if (request.sample > 0) keep_sample(cells, static_cast<std::size_t>(request.sample));
}

PlannedCell only_cell(const std::string& path, const std::vector<std::string>& filters, const Program& program,
                      std::string_view command) {
  const Vocabulary& vocabulary = program.vocabulary();
  RunRequest selection;
  selection.paths = {path};
  selection.filters = filters;
  find_bundled_scenarios(selection.paths, program);
  LoadedScenarios loaded = load_scenarios(find_scenario_files(selection.paths), vocabulary);
  std::string errors;
  for (const ScenarioError& error : loaded.errors)
    errors += fmt::format("{}{}", errors.empty() ? "" : "\n", error.what());
  check(errors.empty(), errors);
  select_cells(loaded.cells, selection, vocabulary);
  if (loaded.cells.size() == 1) return loaded.cells.front();
  std::vector<std::string> ids;
  for (const PlannedCell& cell : loaded.cells) ids.push_back(cell.config.id);
  fail(ids.empty() ? fmt::format("{}: no cell matches --filter", command)
                   : fmt::format("{}: it runs one cell, and the scenario has {}; name one with --filter: {}", command,
                                 ids.size(), listed(ids)));
}

std::vector<std::string> devices_of(const std::vector<PlannedCell>& cells) {
  std::set<std::string> devices;
  for (const PlannedCell& cell : cells) devices.insert(cell.config.device);
  return {devices.begin(), devices.end()};
}

std::string nothing_matches(const RunRequest& request, const std::vector<std::string>& devices,
                            const Vocabulary& vocabulary) {
  const bool on_others =
      !request.devices.empty() && std::ranges::find_first_of(request.devices, devices) == request.devices.end();
  std::string out = on_others ? fmt::format("no cell is on {}; the cells of these files are on {}",
                                            listed(request.devices), fmt::join(devices, " and "))
                              : "no cell matches; `fp8lab run PATH --list` without filters shows what there is";
  for (const std::string& device : request.devices)
    if (const Term* term = find_term(vocabulary.devices, device); term && !term->why_unavailable().empty())
      out += fmt::format("; {} is unavailable: {}", device, term->why_unavailable());
  return out;
}

}  // namespace fp8lab
