#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/measure/scores.h"
#include "harness/train/training_run.h"

// The runs that parity compares an arm with: BF16's, and for an arm that reverts a fix the fixed one.
namespace fp8lab {

/// The stored bytes of a parameter, one entry per buffer: its value, then data and scales of both orientations; empty
/// for a buffer that it lacks.
using Stored = std::array<std::vector<std::byte>, 5>;

/// The stored bytes of all parameters, from both passes, because a pass may gather one orientation only. Collective.
std::vector<Stored> stored_parameters(TrainingRun& run);

/// What a finished run that kept its values leaves for comparison, of one rank.
struct ComparedRun {
  /// Takes the run's values. `with_stored`: else `stored` is empty. Collective, because parameters are gathered.
  ComparedRun(TrainingRun& run, bool with_stored);

  std::int64_t bytes() const;

  std::vector<float> losses;
  TrainingRun::Values values;
  Lists weights;
  std::vector<Stored> stored;
};

/// The most memory of finished runs that a process keeps.
inline constexpr std::int64_t kMostKeptBytes = std::int64_t{128} << 20;

/// A run of `cell` as `arm`, kBf16 or kAfter. A process keeps the last ones, because the cells of a matrix often differ
/// only in their recipe, and because a cell's arms often run in one process: a run that has the same bits every time
/// trains once. Collective over `world`, which is null if nothing is sharded.
std::shared_ptr<const ComparedRun> compared_run(const CellConfig& cell, Arm arm, ProcessGroup* world);

/// Keeps a finished run of `cell` as `arm` for compared_run(), if a second run has the same bits.
void keep_run(const CellConfig& cell, Arm arm, const std::shared_ptr<const ComparedRun>& run,
              const ProcessGroup* world);

/// One more step of a finished run, for measure_same_weights(); of arm kBf16 nothing. Before anything reads weights:
/// that gathers them, and would replace what a defect left in the gathered ones. Collective.
TrainingRun::Passes passes_with_stored_weights(const CellConfig& cell, Arm arm, TrainingRun& run);

/// Puts parity.same_weights_*: `seen` against the same step of BF16 layers that hold `weights`, the unsharded values
/// that the run stores. Both have the same weights, ranks, micro-batches and tokens, so nothing drifts, and they differ
/// by the noise of casts only; by more if a product reads other weights than the stored ones. Collective over `world`,
/// which is null if nothing is sharded.
void measure_same_weights(const CellConfig& cell, Arm arm, TrainingRun& run, TrainingRun::Passes seen,
                          const Lists& weights, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
