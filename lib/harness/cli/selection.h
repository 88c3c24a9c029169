#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cli/program.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// Whether an id contains what the regular expression of `option` describes. Throws Error where it is none.
std::function<bool(const std::string&)> id_matcher(std::string_view option, const std::string& expression);

/// Throws Error for a device that no row of the table names.
void check_devices(const std::vector<std::string>& devices, const Vocabulary& vocabulary);

/// Keeps the cells on the request's devices whose ids match its filter, and of those its sample, which depends on
/// nothing but the ids, so that a scenario which grows keeps most of it. Throws Error for a device or a filter that is
/// none.
void select_cells(std::vector<PlannedCell>& cells, const RunRequest& request, const Vocabulary& vocabulary);

/// For a request that leaves no cell: why, and what to do.
std::string nothing_matches(const RunRequest& request, const Vocabulary& vocabulary);

}  // namespace fp8lab
