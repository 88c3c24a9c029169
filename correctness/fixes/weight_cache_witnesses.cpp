// Witnesses of fixes to cached copies of weights.

#include "core/check.h"
#include "fixes/witness.h"
#include "support/cells.h"

namespace fp8lab {
namespace {

/// True if a model of one weight trains after validation.
bool training_follows_validation(const Behaviors& behaviors) {
  CellConfig cell = support::small_cell("mxfp8", "gpt", "linear");
  cell.training.validation_batches = 1;
  cell.training.cache_weights = true;
  try {
    const support::FinishedRun run(cell, behaviors);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::weight_cache_witnesses() {
  static constexpr Witness kWitnesses[] = {{"reset_incomplete_workspaces", training_follows_validation}};
  return kWitnesses;
}

}  // namespace fp8lab
