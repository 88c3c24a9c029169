#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/program.h"
#include "harness/predict/fit.h"
#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"

// What `fp8lab plan` finds out about cells.
namespace fp8lab {

/// What the ranks' device has.
struct Capacity {
  std::int64_t bytes = 0;  ///< 0: none was asked for
  std::string words;       ///< "77.6 GiB of an h100 (79.6 GiB less 2.0 GiB for ...)"
  std::string arch = "hopper";
  std::string gpu;  ///< "h100"; "": none was named
  bool fp8 = true;  ///< false: the GPU has no FP8 matrix products
};
/// Throws Error for a GPU or a size that is not known.
Capacity capacity_of(const PlanRequest& request);

/// True if fewer bytes than three quarters of the peak are to spare, or than a segment of the allocator. Predicted are
/// live bytes; a run holds the capacity against what its caching allocator reserves: on `meta` up to 29 % more in the
/// bundled scenarios' 1268 arms with peaks above 4 GiB, up to 51 % more in those from 1 to 4 GiB, and up to 70 % more
/// in language models with recomputation, whose logits find no segment.
bool is_tight(std::int64_t peak, std::int64_t capacity);

struct PlannedArm {
  Arm arm;
  Estimate estimate;
  /// Of at least two steps: an optimizer makes its state in the first, so that the peak of one step is not that of
  /// training. Present where a capacity was asked for.
  std::optional<Estimate> lasting;
  std::string reason;                 ///< why there are no figures
  std::string cannot_run;             ///< why the GPU cannot run the arm, whatever memory it has; "": it can
  std::optional<std::int64_t> spare;  ///< capacity less peak; nothing where one of them is not known
  std::optional<FitSearch> search;    ///< of changes that make the arm fit, where they were looked for

  bool fits() const { return spare && *spare >= 0 && cannot_run.empty(); }
};

struct Planned {
  PlannedCell cell;
  std::int64_t capacity = 0;  ///< bytes of a rank's device; 0: not known
  std::vector<PlannedArm> arms;
  std::vector<Gate> gates;  ///< the expectations that predictions decide
  std::size_t open = 0;     ///< those that they do not
  bool of_library = false;  ///< the figures are a library's, which no run on `meta` shows

  /// True if an expectation fails or, where `fits` is asked for, the after arm does not fit.
  bool fails(bool fits) const;
};

/// Without bytes in `capacity`: in the cell's own. Otherwise training of two steps or more is what must fit.
Planned planned(const PlannedCell& cell, const Capacity& capacity, const std::vector<Arm>& arms,
                const Program& program);

/// The cells of `fp8lab plan --model`: by recipe, then by ranks.
struct ModelPlan {
  std::vector<PlannedCell> cells;
  std::vector<int> ranks;
  std::string heading;
};
/// Throws Error for an unknown model, key or value, and for a cell that cannot be run.
ModelPlan model_plan(const PlanRequest& request, const Capacity& capacity, const Vocabulary& vocabulary);

}  // namespace fp8lab
