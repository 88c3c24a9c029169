#pragma once

#include <string>
#include <vector>

#include "harness/cli/plan/planned.h"

// What `fp8lab plan` prints about one arm's memory and about the changes that make arms fit. Each figure names the
// runtime or library that it belongs to.
namespace fp8lab {

/// Bytes in one unit over all cells: "77.6 GiB".
std::string bytes_text(double value);

/// True if the arm fits, but blocks of an allocator may need more than its live bytes: see is_tight(), and
/// reserved_share() of PyTorch's figures.
bool fits_tightly(const Planned& plan, const PlannedArm& arm);

/// Lines that state whether the arm fits the built-in runtime or library, whether it fits PyTorch, and what their peaks
/// consist of.
std::string fit_text(const Planned& plan, const PlannedArm& arm, const std::string& indent);

/// A row of a plan: a recipe of a model, or a cell.
struct PlannedRow {
  std::string title;
  const Planned* plan = nullptr;
};
/// Each change that makes a row fit, once, with its price and the rows that it makes fit, the cheapest first; and the
/// rows that nothing makes fit. "" if no search was made.
std::string remedies_text(const std::vector<PlannedRow>& rows);

/// What explains the words "by live bytes", if `text` has them.
std::string live_bytes_legend(const std::string& text, bool of_library);

/// "training.checkpoint=full"
std::string text_of_changes(const Fit& fit);

}  // namespace fp8lab
