#pragma once

#include <string>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Why a library's arm has no plain twin, or "". Its worker decides by the same rules
/// (lib/subjects/fp8lab_subjects/scored/twin_rules.py), of which `recipe` is the arm's recipe.
std::string why_no_library_twin(const CellConfig& cell, const std::string& recipe);

}  // namespace fp8lab
