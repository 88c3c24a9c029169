#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "harness/scenario.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = 1 << 20;

std::string contents(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
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
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw ScenarioError(file.string(), {}, fmt::format("cannot be read: {}", std::strerror(errno)));
  return text;
}

bool is_scenario_file(const fs::path& path) { return path.extension() == ".yaml" || path.extension() == ".yml"; }

std::vector<fs::path> files_under(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::path last = directory;
  for (auto it = fs::recursive_directory_iterator(directory, error); it != fs::recursive_directory_iterator();) {
    last = it->path();
    std::error_code ignored;  // of a link that leads nowhere
    if (it->is_directory(ignored) && last.filename() == "schema") it.disable_recursion_pending();
    if (it->is_regular_file(ignored) && is_scenario_file(last)) files.push_back(last);
    it.increment(error);
  }
  if (error) fail(fmt::format("{}: cannot be searched for scenarios: {}", last.string(), error.message()));
  std::sort(files.begin(), files.end());
  return files;
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
  // A file named on its own and found under a directory too is one file.
  std::vector<fs::path> unique;
  for (const fs::path& file : files)
    if (std::none_of(unique.begin(), unique.end(), [&](const fs::path& seen) {
          std::error_code ignored;
          return seen == file || fs::equivalent(seen, file, ignored);
        }))
      unique.push_back(file);
  return unique;
}

LoadedScenarios load_scenarios(const std::vector<fs::path>& files, const Vocabulary& vocabulary) {
  LoadedScenarios out;
  for (const fs::path& file : files) {
    try {
      Scenario scenario = parse_scenario(contents(file), file.string(), vocabulary);
      for (const Scenario& other : out.scenarios)
        if (other.name == scenario.name)
          throw ScenarioError(scenario.file, scenario.places["name"],
                              fmt::format("`name`: {} already names a scenario, in {}", scenario.name, other.file));
      std::vector<PlannedCell> cells = plan_cells(scenario, vocabulary);
      std::move(cells.begin(), cells.end(), std::back_inserter(out.cells));
      out.scenarios.push_back(std::move(scenario));
    } catch (const ScenarioError& error) {
      out.errors.push_back(error);
      out.errors.insert(out.errors.end(), error.others().begin(), error.others().end());
    }
  }
  return out;
}

}  // namespace fp8lab
