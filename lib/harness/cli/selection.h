#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/cli/program.h"
#include "harness/scenario/id_matcher.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// The folder of the bundled scenarios, or "" if there is none.
std::string bundled_directory(const Program& program);

/// Lets `scenarios`, and paths below it, name the bundled ones in every folder that has none of that name. Throws
/// Error, with the place and the command, for a path that does not exist and is the name of a bundled scenario.
void find_bundled_scenarios(std::vector<std::string>& paths, const Program& program);

/// Throws Error for a device that the device table lacks.
void check_devices(const std::vector<std::string>& devices, const Vocabulary& vocabulary);

/// Keeps the cells on the request's devices whose ids match its filters, and of those a sample. The sample depends on
/// ids only, so that it changes little when a scenario grows. Throws Error for an unknown device or an invalid filter.
void select_cells(std::vector<PlannedCell>& cells, const RunRequest& request, const Vocabulary& vocabulary);

/// The only cell of the scenario at `path` whose id matches the filters. Throws Error, which begins with `command`, for
/// a scenario with mistakes, for no cell and for several.
PlannedCell only_cell(const std::string& path, const std::vector<std::string>& filters, const Program& program,
                      std::string_view command);

/// The devices of the cells, each once.
std::vector<std::string> devices_of(const std::vector<PlannedCell>& cells);

/// The message for a request that selects no cell: the reason, and what to do. `devices`: of all cells, selected or
/// not.
std::string nothing_matches(const RunRequest& request, const std::vector<std::string>& devices,
                            const Vocabulary& vocabulary);

}  // namespace fp8lab
