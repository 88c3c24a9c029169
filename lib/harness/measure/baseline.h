#pragma once

#include <memory>
#include <vector>

#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/measure/scores.h"
#include "harness/train/training_run.h"

// The BF16 run that parity compares an arm with.
namespace fp8lab {

/// What a finished run that kept its values leaves for comparison, of one rank.
struct Baseline {
  /// Collective, because weights are gathered.
  explicit Baseline(TrainingRun& run) : losses(run.losses()), values(run.values()), weights(run.weights()) {}

  std::int64_t bytes() const;

  std::vector<float> losses;
  TrainingRun::Values values;
  Lists weights;
};

/// The most memory of baselines that a process keeps.
inline constexpr std::int64_t kMostBaselineBytes = std::int64_t{64} << 20;

/// The BF16 run of `cell`. A process keeps the last ones, because the cells of a matrix often differ in their recipe
/// alone: a run that has the same bits every time trains once. Collective over `world`, which is null where nothing is
/// sharded.
std::shared_ptr<const Baseline> bf16_baseline(const CellConfig& cell, ProcessGroup* world);

/// Keeps the finished BF16 arm of `cell` as its baseline, and returns it. Collective.
std::shared_ptr<const Baseline> keep_as_baseline(const CellConfig& cell, TrainingRun& run, ProcessGroup* world);

}  // namespace fp8lab
