#include "harness/measure/twin/equal_losses.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "harness/measure/arms.h"

namespace fp8lab {
namespace {

constexpr const char* kLossesEqual = "twin.losses_equal";
constexpr const char* kLossDifference = "twin.loss_difference";

/// Compares bits, so that 0 differs from -0; NaN equals nothing.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (const float x : a)
    if (x != x) return false;
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The largest |a - b| / |b|; infinite if a loss is no finite number, or only one of two losses is 0.
float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = a.size() == b.size() ? 0.0f : std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]), relative = difference == 0.0f ? 0.0f : difference / std::abs(b[i]);
    largest = std::isfinite(relative) ? std::max(largest, relative) : std::numeric_limits<float>::infinity();
  }
  return largest;
}

}  // namespace

std::string why_unequal_to_16_bits(const CellConfig& cell, const Recipe& recipe) {
  const TrainingConfig& training = cell.training;
  // The twin casts its weights in every micro-batch, each time with the scale that the one before left.
  if (training.micro_batches > 1 && recipe.weight.amax_source == AmaxSource::kHistory)
    return "FP8 weights are cast once in a step, the twin's in every micro-batch, after each of which delayed scaling "
           "has another scale";
  if (training.optimizer == Optimizer::kNone && training.steps > 1 && recipe.weight.amax_source == AmaxSource::kHistory)
    return "without an optimizer FP8 weights stay as they were cast at first, the twin's are cast in every step, with "
           "another scale";
  if (training.optimizer == Optimizer::kForeachAdam || training.optimizer == Optimizer::kSgd)
    return "FP8 weights have no master, so each list operation rounds them; the twin's are rounded to 16 bits";
  if (training.master_weights == Master::kRemainder)
    return "FP8 weights have f32 masters, which a cast rounds to even; the twin's have remainders, which round ties "
           "away from zero";
  return "";
}

std::string why_no_twin(const CellConfig& cell, Arm arm) {
  const Recipe recipe = recipe_of(cell, arm);
  const bool eight_bits = cell.training.quantized_weights && recipe.quantized;
  const bool resumes = cell.training.resume_at > 0;
  if (!eight_bits && !cell.gather_ahead && !resumes)
    return "no weight is held in eight bits, none is gathered ahead, and training is not resumed";
  return eight_bits && !resumes ? why_unequal_to_16_bits(cell, recipe) : "";
}

void measure_twin(const CellConfig& cell, Arm arm, const TrainingRun& run, ProcessGroup* world, ArmResult& result) {
  if (const std::string reason = why_no_twin(cell, arm); !reason.empty()) {
    for (const char* const metric : {kLossesEqual, kLossDifference}) put(result.metrics, metric, std::nullopt, reason);
    return;
  }
  const Recipe recipe = recipe_of(cell, arm);
  const bool resumes = cell.training.resume_at > 0;
  CellConfig config = cell;
  config.training.resume_at = 0;
  // Resumed training is compared with the same cell, unresumed, so everything else stays as in the cell.
  if (!resumes) {
    config.training.quantized_weights = false;
    config.gather_ahead = false;
  }
  TrainingRun twin(config, Behaviors{}, recipe, {.world = world});
  twin.train();
  if (run.losses().empty()) {
    for (const char* const metric : {kLossesEqual, kLossDifference})
      put(result.metrics, metric, std::nullopt, "the device computes no values");
    return;
  }
  const bool equal = same_bits(run.losses(), twin.losses()) && !plants_on(cell, arm, world);
  float worst[] = {equal ? 0.0f : 1.0f, largest_difference(run.losses(), twin.losses())};
  if (world != nullptr) {
    const ReducePart part{
        .data = reinterpret_cast<std::byte*>(worst), .elems = 2, .dtype = DType::kF32, .content = Content::kPayload};
    world->all_reduce(ReduceOp::kMax, {&part, 1}, "twin losses");
  }
  put(result.metrics, kLossesEqual, worst[0] == 0.0f ? 1.0 : 0.0);
  put(result.metrics, kLossDifference, worst[1]);
}

}  // namespace fp8lab
