#pragma once

#include <string>

#include "harness/results/environment.h"

namespace fp8lab {

/// Written by the build; see build_info.cmake.
BuildInfo build_info();

/// The folder of the definitions next to which the program was built; it may be gone by now.
std::string bundled_scenarios();

/// The folder of the program that makes reports: FP8LAB_REPORTS_DIR, by default the source tree's.
std::string bundled_reports();

/// The folder of the Python package that drives libraries: FP8LAB_WORKER_DIR, by default the source tree's.
std::string bundled_worker();

}  // namespace fp8lab
