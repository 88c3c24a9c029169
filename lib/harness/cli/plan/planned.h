#pragma once

#include <cstdint>
#include <map>
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
  Arm arm = Arm::kAfter;
  Estimate estimate;
  /// Figures of at least two steps: an optimizer makes its state in the first, so the peak of one step is not the peak
  /// of training. Present if a capacity was asked for.
  std::optional<Estimate> lasting;
  /// What a PyTorch program holds, over the steps of `lasting`: Program::torch. Absent before a fix, if the figures are
  /// a library's, and if a key is not covered, which the reason names.
  std::optional<ReleaseFigures> torch;
  std::string torch_reason;
  std::map<std::string, double> measured;  ///< figures of a result set, by the names of predicted ones
  std::string reason;                      ///< why there are no figures
  std::string cannot_run;                  ///< why the GPU cannot run the arm, whatever memory it has; "": it can
  std::optional<std::int64_t> spare;       ///< capacity less peak; nothing if one of them is not known
  /// Capacity less the live bytes of `torch`; nothing if none was asked for: a cell's own capacity bounds the own
  /// runtime.
  std::optional<std::int64_t> torch_spare;
  std::optional<FitSearch> search;  ///< for changes that make the arm fit, if it was made

  /// False also if only PyTorch does not fit.
  bool fits() const { return spare && *spare >= 0 && !torch_lacks_memory() && cannot_run.empty(); }
  bool torch_lacks_memory() const { return torch_spare && *torch_spare < 0; }
};

struct Planned {
  PlannedCell cell;
  std::int64_t capacity = 0;  ///< bytes of a rank's device; 0: not known
  std::vector<PlannedArm> arms;
  std::vector<Gate> gates;  ///< the expectations that predictions decide
  std::size_t open = 0;     ///< those that they do not
  std::string library;      ///< whose figures they are, which no run on `meta` shows; "": the own runtime's
  bool asks_torch = false;  ///< PyTorch's figures belong next to the own runtime's, as far as they are known
  /// Figures of the bf16 arm of a cell in eight bits; absent if there are none.
  std::optional<PlannedArm> bf16;

  /// "the built-in runtime", or the library
  std::string subject() const { return library.empty() ? "the built-in runtime" : library; }
  /// "own", or the library: the field "figures_of" of JSON
  std::string figures_of() const { return library.empty() ? "own" : library; }
  /// True if an expectation fails or, if `fits` is asked for, the after arm does not fit.
  bool fails(bool fits) const;
};

/// Under `sharding: ddp` (N - 1) / N of the all-reduced bytes of N ranks; else the estimate's, with the same part of
/// what N replicas all-reduce, and for an estimate without them (N - 1) / N of what N shards gather and reduce. Nothing
/// without such figures.
std::optional<MovedBytes> moved_bytes(const CellConfig& cell, const Estimate& estimate);

/// Without bytes in `capacity`: in the cell's own. Otherwise training of two steps or more is what must fit.
Planned planned(const PlannedCell& cell, const Capacity& capacity, const std::vector<Arm>& arms,
                const Program& program);

/// The cells of `fp8lab plan --model`: by recipe, then by ranks.
struct ModelPlan {
  std::vector<PlannedCell> cells;
  std::vector<int> ranks;
  std::string heading;
};
/// Throws Error for an unknown model, a file of none, an unknown key or value, and for a cell that cannot be run.
ModelPlan model_plan(const PlanRequest& request, const Capacity& capacity, const Vocabulary& vocabulary);

}  // namespace fp8lab
