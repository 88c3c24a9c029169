#pragma once

#include <filesystem>

#include "harness/cell/cell.h"

namespace fp8lab {

/// The hidden command that prints score_values() of a folder, as a worker's arm result.
inline constexpr const char* kScoreCommand = "__score";

/// Scores the values that a worker left in `folder`, by the rules by which the own runtime's are scored: metrics of
/// parity, losses, and noise by tensor. cell.json has the number of ranks and whether parameters are sharded.
/// Each run has a folder: `arm`; `bf16`, with which it is compared; and, if both arms can be compared, `after`. It
/// holds for every rank R `rank-R.json`, which describes the tensors, and files of 32-bit floats: losses-R.f32,
/// output-R.f32, initial-R.f32 and weights-R.f32 (unsharded parameters in the order of the description),
/// gradients-R.f32 (of the rank's rows). `arm` may also hold a pass of its layers with the trained weights, and of BF16
/// layers with the same weights: own_pass_output-R.f32, own_pass_gradients-R.f32 (with the gradient of the input at the
/// end: `input_gradient` values, as rank-R.json states), bf16_pass_output-R.f32 and
/// bf16_pass_gradients-R.f32; and again_pass_*, joined_* and exact_* of plain_twin.py. Throws Error for a folder that
/// holds anything else.
ArmResult score_values(const std::filesystem::path& folder);

}  // namespace fp8lab
