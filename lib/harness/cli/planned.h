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

struct PlannedArm {
  Arm arm;
  Estimate estimate;
  /// Of at least two steps: an optimizer makes its state in the first, so that the peak of one step is not that of
  /// training. Present where a capacity was asked for.
  std::optional<Estimate> lasting;
  std::string reason;                 ///< why there are no figures
  std::optional<std::int64_t> spare;  ///< capacity less peak; nothing where one of them is not known
  bool searched = false;              ///< changes that make the arm fit were looked for
  std::vector<Fit> fits;              ///< the cheapest first
};

struct Planned {
  PlannedCell cell;
  std::int64_t capacity = 0;  ///< bytes of a rank's device; 0: not known
  std::vector<PlannedArm> arms;
  std::vector<Gate> gates;  ///< the expectations that predictions decide
  std::size_t open = 0;     ///< those that they do not

  /// True if an expectation fails or, where `fits` is asked for, the after arm does not fit.
  bool fails(bool fits) const;
};

/// `capacity` 0: the cell's own. Otherwise training of two steps or more is what must fit.
Planned planned(const PlannedCell& cell, std::int64_t capacity, const std::vector<Arm>& arms, const Program& program);

struct Capacity {
  std::int64_t bytes = 0;  ///< 0: none was given
  std::string words;       ///< "77.6 GiB of an h100 (79.6 GiB less 2.0 GiB for ...)"
  std::string arch = "hopper";
  bool fp8 = true;
};
/// Throws Error for a GPU or a size that is not known.
Capacity capacity_of(const PlanRequest& request);

/// The cells of `fp8lab plan --model`: by recipe, then by ranks.
struct ModelPlan {
  std::vector<PlannedCell> cells;
  std::vector<int> ranks;
  std::string heading;
};
/// Throws Error for an unknown model, key or value, and for a cell that cannot be run.
ModelPlan model_plan(const PlanRequest& request, const Capacity& capacity, const Vocabulary& vocabulary);

}  // namespace fp8lab
