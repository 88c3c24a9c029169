#pragma once

#include <string>

#include "harness/measure/cast_counts.h"
#include "harness/measure/measure.h"
#include "harness/measure/twin/plain_twin.h"
#include "harness/train/training_run.h"

namespace fp8lab {

/// Why a cell has no figures of collectives over shards.
inline constexpr const char* kNotSharded = "nothing is sharded";

/// Why the ranks of an arm have no scales of delayed scaling in common, or "". Known before anything runs.
std::string why_no_common_scales(const CellConfig& cell, Arm arm);
/// Why no validation of the arm could change scales, or "".
std::string why_no_scales_in_validations(const CellConfig& cell, Arm arm);

/// Measures the parity metrics of a finished run that kept its values. Runs the BF16 model, and for `before` the fixed
/// one, on devices of their own, over the same ranks. `counted` are the casts that the run reported, kMostCastSteps
/// steps of them; null: they are counted in a further run. `steps`: what its first steps computed, if the arm has a
/// plain twin. `world` is null if the cell is not sharded. All ranks get the same figures.
void measure_parity(const CellConfig& cell, Arm arm, TrainingRun& run, const CastCounter* counted,
                    const StepRecorder* steps, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
