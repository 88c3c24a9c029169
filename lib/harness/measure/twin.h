#pragma once

#include "harness/measure/training_run.h"

namespace fp8lab {

/// The twin metrics of a finished run: the same cell done the plain way runs beside it over the same ranks. Its weights
/// are in the nominal type, cast anew in every forward, and gathered when they are wanted. Eight-bit weights with FP32
/// masters are rewritten from what the twin casts, and no bit depends on when it is gathered, so both see the same
/// bits. Where the cell resumes training (`resume_at`), the twin is the cell without that, and the bits are those of
/// training that never stopped.
void measure_twin(const CellConfig& cell, Arm arm, const TrainingRun& run, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
