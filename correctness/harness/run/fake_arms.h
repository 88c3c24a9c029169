#pragma once

#include "harness/run/launched_runner.h"

namespace fp8lab::sample {

/// An arm that fails as the name of its scenario specifies: in scenario `before_segv` the before arm dereferences a
/// null pointer. Other arms report 100 retained bytes before, none after.
ArmResult fake_arm(const CellConfig& cell, Arm arm);

/// The same arm over launched ranks, between two barriers. In scenarios `rank_throws`, `rank_dies` and `rank_hangs`
/// rank 1 ends the before arm there as the name specifies. In other scenarios rank 1 stops its process after the arm:
/// in `rank_stops` at once, in `rank_stops_idle` when it waits for the next arm.
ArmResult fake_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm);

/// Predicts 100 retained bytes before, but none in `before_unharmed`, and none after. In scenario `rank_stops_idle` the
/// prediction takes a while; in `head_stops` it never ends.
std::map<std::string, double> fake_prediction(const CellConfig& cell, Arm arm);

}  // namespace fp8lab::sample
