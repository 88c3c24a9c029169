#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/regular_file.h"
#include "harness/scenario/scenario.h"
#include "harness/scenario/scenario_reader.h"
#include "harness/scenario/unread_keys.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = 1 << 20;

std::string contents(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status)) {
    fs::directory_iterator(file, error);
    throw ScenarioError(file.string(), {}, "cannot be searched for scenarios: " + error.message());
  }
  if (!fs::is_regular_file(status)) {
    const std::string problem = fs::exists(status) ? "neither a file nor a directory" : "no such file or directory";
    throw ScenarioError(file.empty() ? "``" : file.string(), {},
                        fmt::format("{}; give a scenario file, or a directory to search for *.yaml",
                                    status.type() == fs::file_type::none ? error.message() : problem));
  }
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) throw ScenarioError(file.string(), {}, "cannot be read: " + error.message());
  if (size > kLargestFile)
    throw ScenarioError(file.string(), {}, fmt::format("{} bytes is no scenario; the limit is {}", size, kLargestFile));
  try {
    return read_regular_file(file, kLargestFile);
  } catch (const Error& bad) {
    throw ScenarioError(file.string(), {}, std::string(bad.what()).substr(file.string().size() + 2));
  }
}

/// The device and inode of a file, which all its names share; nothing if there is no such file.
std::optional<std::pair<dev_t, ino_t>> identity_of(const fs::path& file) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

bool is_scenario_file(const fs::path& path) { return path.extension() == ".yaml" || path.extension() == ".yml"; }

/// The scenario files below `directory`, and each folder there that cannot be read, which load_scenarios() reports.
std::vector<fs::path> files_under(const fs::path& directory) {
  std::vector<fs::path> files, folders{directory};
  while (!folders.empty()) {
    const fs::path folder = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    for (auto it = fs::directory_iterator(folder, error); it != fs::directory_iterator(); it.increment(error)) {
      const fs::path& path = it->path();
      std::error_code ignored;  // a dangling link is an error here, but no reason to stop
      if (it->is_directory(ignored) && !it->is_symlink(ignored)) folders.push_back(path);
      if (it->is_regular_file(ignored) && is_scenario_file(path)) files.push_back(path);
    }
    if (error) files.push_back(folder);
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Throws ScenarioError for a cell with an arm that would run and has no gate, which could only end inconclusive, and
/// for a scenario with no entry about a before arm, which would then have implied gates only.
void check_both_arms_are_expected(const Scenario& scenario, const std::vector<PlannedCell>& cells) {
  const PlannedCell* first = nullptr;
  bool states_before = false;
  const auto check = [&](const PlannedCell& cell, Side side, bool is_expected) {
    if (!is_expected)
      throw ScenarioError(
          scenario.file,
          scenario.places.at(cell.config.fix.empty() || !scenario.places.contains("fix") ? "name" : "fix"),
          fmt::format("nothing is expected of the {0} arm of cell {1}, so that it would show nothing; add an `expect` "
                      "entry with `arm: {0}` or `arm: difference`",
                      name(side), cell.config.id));
  };
  for (const PlannedCell& cell : cells) {
    if (!has_before(cell.config) || !(cell.skip_reason.empty() || cell.skipped_here)) continue;
    if (!first) first = &cell;
    const auto speaks_of = [](const Expectation& e, Side side) {
      return e.side == side || e.side == Side::kDifference || (side == Side::kBefore && e.of == Arm::kBefore);
    };
    for (const Side side : {Side::kBefore, Side::kAfter})
      check(cell, side, std::ranges::any_of(cell.expect, [&](const auto& e) { return speaks_of(e, side); }));
    states_before |= std::ranges::any_of(
        cell.expect, [&](const Expectation& e) { return !e.of_group && speaks_of(e, Side::kBefore); });
  }
  if (first) check(*first, Side::kBefore, states_before);
}

bool gates_values(const Expectation& expectation) {
  const Metric* metric = find_metric(expectation.metric);
  return metric && metric->is_of_values();
}

/// The devices of cells that compute values, as a condition has them: "cpu", "[cpu, cuda]".
std::string computing_devices(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) {
  std::vector<std::string> devices;
  for (const PlannedCell& cell : cells)
    if (vocabulary.computes_values(cell.config.device) &&
        std::ranges::find(devices, cell.config.device) == devices.end())
      devices.push_back(cell.config.device);
  return devices.size() == 1 ? devices.front() : fmt::format("[{}]", fmt::join(devices, ", "));
}

/// Throws ScenarioError for expectations about values of cells on a device that computes none, which could only end
/// inconclusive.
void check_values_are_computed(const Scenario& scenario, const std::vector<PlannedCell>& cells,
                               const Vocabulary& vocabulary) {
  if (!vocabulary.computes_values) return;
  Mistakes mistakes;
  std::set<int> lines;
  for (const PlannedCell& cell : cells) {
    if (vocabulary.computes_values(cell.config.device) || !(cell.skip_reason.empty() || cell.skipped_here)) continue;
    for (const Expectation& e : cell.expect)
      if (gates_values(e) && lines.insert(e.line).second)
        mistakes.collect([&] {
          throw ScenarioError(
              scenario.file, {e.line, 1},
              fmt::format("`expect`: {} needs values, and device {} of cell {} computes none, so it "
                          "could only end inconclusive; add `when: {{device: {}}}`",
                          e.metric, cell.config.device, cell.config.id, computing_devices(cells, vocabulary)));
        });
  }
  mistakes.throw_all();
}

/// Sets `inconclusive` of cells with expectations about figures that no run of theirs can have.
void foresee_inconclusive(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) {
  if (!vocabulary.why_absent) return;
  for (PlannedCell& cell : cells) {
    if (!vocabulary.computes_values || !vocabulary.computes_values(cell.config.device)) continue;
    for (const Expectation& e : cell.expect) {
      if (!gates_values(e) || !cell.inconclusive.empty()) continue;
      const Arm arm = e.side == Side::kBefore ? Arm::kBefore : e.side == Side::kBf16 ? Arm::kBf16 : Arm::kAfter;
      if (const std::string reason = vocabulary.why_absent(cell.config, arm, e.metric); !reason.empty())
        cell.inconclusive = fmt::format("{} is absent: {}", e.metric, reason);
    }
  }
}

using FileByName = std::unordered_map<std::string, std::string>;  ///< by name of the scenario

struct LoadedScenario {
  Scenario scenario;
  std::vector<PlannedCell> cells;
};

/// Throws ScenarioError for mistakes that only all cells together show.
LoadedScenario checked(Scenario scenario, const FileByName& file_of, const Vocabulary& vocabulary) {
  if (const auto other = file_of.find(scenario.name); other != file_of.end())
    throw ScenarioError(scenario.file, scenario.places["name"],
                        fmt::format("`name`: {} already names a scenario, in {}", scenario.name, other->second));
  std::vector<PlannedCell> cells = plan_cells(scenario, vocabulary);
  check_both_arms_are_expected(scenario, cells);
  check_values_are_computed(scenario, cells, vocabulary);
  foresee_inconclusive(cells, vocabulary);
  return {std::move(scenario), std::move(cells)};
}

}  // namespace

std::vector<fs::path> find_scenario_files(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      const std::vector<fs::path> found = files_under(path);
      if (found.empty()) fail(fmt::format("{}: no scenario file (*.yaml) under this directory", path));
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.emplace_back(path);
    }
  }
  // A file that is named and also found under a directory is read once.
  std::set<fs::path> names;
  std::set<std::pair<dev_t, ino_t>> identities;
  std::erase_if(files, [&](const fs::path& file) {
    if (!names.insert(file).second) return true;
    const auto identity = identity_of(file);
    return identity && !identities.insert(*identity).second;
  });
  return files;
}

LoadedScenarios load_scenarios(const std::vector<fs::path>& files, const Vocabulary& vocabulary) {
  LoadedScenarios out;
  FileByName file_of;
  for (const fs::path& file : files) {
    try {
      std::vector<LoadedScenario> loaded;
      for (Scenario& scenario : parse_scenarios(contents(file), file.string(), vocabulary))
        loaded.push_back(checked(std::move(scenario), file_of, vocabulary));
      for (LoadedScenario& one : loaded) {
        std::ranges::move(UnreadKeys(one.scenario, vocabulary).partly_read(one.cells), std::back_inserter(out.remarks));
        std::ranges::move(one.cells, std::back_inserter(out.cells));
        file_of.emplace(one.scenario.name, one.scenario.file);
        out.scenarios.push_back(std::move(one.scenario));
      }
    } catch (const ScenarioError& error) {
      out.errors.push_back(error);
      out.errors.insert(out.errors.end(), error.others().begin(), error.others().end());
    }
  }
  return out;
}

}  // namespace fp8lab
