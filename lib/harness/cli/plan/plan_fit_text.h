#pragma once

#include <string>
#include <vector>

#include "harness/cli/plan/planned.h"

// What `fp8lab plan` prints about one arm's memory and about the changes that make arms fit. Each figure names the
// runtime or library that it belongs to.
namespace fp8lab {

/// Bytes in one unit over all cells: "77.6 GiB".
std::string bytes_text(double value);

/// Whether a program of PyTorch, or of the library `release`, fits: its live bytes must, and what PyTorch's allocator
/// reserves with a margin should.
struct TorchFit {
  double live = 0;                 ///< bytes at the peak
  std::optional<double> reserved;  ///< with the margin; nothing on a host, whose allocator reserves nothing
  bool is_bound = false;           ///< `reserved` is the most that it was in recorded runs, for want of a prediction
  bool fits = false;               ///< the live bytes do
  bool is_sure = false;            ///< so do the reserved ones, if there are any
};
TorchFit torch_fit_of(const Estimate& estimate, const std::string& release, std::int64_t capacity);

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

/// What explains the words "by live bytes", if `text` has them; `library`: whose figures it has, "" for the own
/// runtime's.
std::string live_bytes_legend(const std::string& text, const std::string& library);

/// "training.checkpoint=full"
std::string text_of_changes(const Fit& fit);

}  // namespace fp8lab
