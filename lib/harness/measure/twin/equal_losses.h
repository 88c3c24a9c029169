#pragma once

#include "harness/train/training_run.h"

namespace fp8lab {

/// Why the arm has no twin whose losses must be equal, or "". Known before anything runs.
std::string why_no_twin(const CellConfig& cell, Arm arm);

/// Why losses of a correct run with FP8 weights may differ from losses of the same run with weights in 16 bits, or "".
std::string why_unequal_to_16_bits(const CellConfig& cell, const Recipe& recipe);

/// Measures the twin metrics of a finished run. The twin is the same cell done the plain way, over the same ranks: its
/// weights are in the nominal type, cast in every forward and gathered when they are needed. Both must give equal bits,
/// because eight-bit weights with FP32 masters are rewritten from the values that the twin casts, and no bit depends on
/// the time of a gather. If the cell resumes training (`resume_at`), the twin is the cell without resuming, and the
/// bits must equal the bits of training that never stopped.
void measure_twin(const CellConfig& cell, Arm arm, const TrainingRun& run, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
