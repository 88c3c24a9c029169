#include "harness/predict/predict_vocabulary.h"

#include "harness/cell/sharding_keys.h"

namespace fp8lab {
namespace {

constexpr double kF32 = 4, k16Bits = 2;

double moment_bytes(Moments moments) {
  switch (moments) {
    case Moments::kF32: return kF32;
    case Moments::kBF16:
    case Moments::kF16: return k16Bits;
    case Moments::kE4M3: return 1;
  }
  return kF32;
}

/// Bytes of the optimizer's state for each element of a parameter.
double optimizer_bytes(const TrainingConfig& training) {
  if (training.optimizer == Optimizer::kNone) return 0;
  const double master = training.master_weights == Master::kF32         ? kF32
                        : training.master_weights == Master::kRemainder ? k16Bits
                                                                        : 0;
  return 2 * moment_bytes(training.moments) + master;
}

}  // namespace

VocabularyBytes vocabulary_bytes(const CellConfig& cell, const VocabularySize& vocabulary) {
  if (vocabulary.tokens == 0) return {};
  const std::int64_t shards = is_sharded(cell) ? mesh_of(cell).shards : 1;
  const double rows = static_cast<double>((vocabulary.tokens + shards - 1) / shards);  // of rank 0, the most
  const double element = cell.training.param_dtype == ParamDType::kF32 ? kF32 : k16Bits;
  const auto hidden = static_cast<double>(cell.model.hidden), all = static_cast<double>(vocabulary.tokens);
  const auto tokens = static_cast<double>(cell.model.seq * cell.model.batch);
  const double matrices = vocabulary.tied ? 1 : 2;
  const double gathered = is_sharded(cell) ? all * hidden * 2 * element : 0;  // the head and its gradient
  return {.standing = matrices * rows * hidden * (2 * element + optimizer_bytes(cell.training)),
          .at_loss = gathered + tokens * all * (k16Bits + kF32 + k16Bits)};
}

}  // namespace fp8lab
