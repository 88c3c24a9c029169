#pragma once

#include <filesystem>

#include "harness/cell/cell.h"

namespace fp8lab {

/// The hidden command that prints score_values() of a folder, as a worker's arm result.
inline constexpr const char* kScoreCommand = "__score";

/// Scores the values that a worker left in `folder`, by the rules by which the own runtime's are scored: metrics of
/// parity, losses, and noise by tensor. cell.json says how many ranks there are and whether parameters are sharded.
/// Each run has a folder: `arm`; `bf16`, with which it is compared; and, where both arms can be compared, `after`. It
/// holds for every rank R `rank-R.json`, which describes the tensors, and files of 32-bit floats: losses-R.f32,
/// output-R.f32, initial-R.f32 and weights-R.f32 (unsharded parameters in the order of the description),
/// gradients-R.f32 (of the rank's rows). Throws Error for a folder that holds anything else.
ArmResult score_values(const std::filesystem::path& folder);

}  // namespace fp8lab
