#pragma once

#include "harness/run/launched_runner.h"

namespace fp8lab::sample {

/// An arm that misbehaves as its scenario's name says: in scenario `before_segv` the before arm dereferences nothing.
/// Arms that are not named measure 100 retained bytes before, none after.
ArmResult fake_arm(const CellConfig& cell, Arm arm);

/// The same over launched ranks, between two barriers. In a scenario of these names rank 1 ends the before arm there:
/// `rank_throws`, `rank_dies`, `rank_hangs`. In others it stops after that: in `rank_stops` at once, in
/// `rank_stops_idle` when it waits for the next arm.
ArmResult fake_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm);

/// 100 retained bytes before, none after. In scenario `rank_stops_idle` that takes a while; in `head_stops` it never
/// ends.
std::map<std::string, double> fake_prediction(const CellConfig& cell, Arm arm);

}  // namespace fp8lab::sample
