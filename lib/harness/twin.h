#pragma once

#include "harness/training_run.h"

namespace fp8lab {

/// The twin metrics of a finished run: the same cell with its weights in the nominal type, cast anew in every forward, runs beside it
/// over the same ranks. Eight-bit weights with FP32 masters are rewritten from what the twin casts, so both see the same bits.
void measure_twin(const CellConfig& cell, Arm arm, const TrainingRun& run, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
