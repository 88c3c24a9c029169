#include "harness/predict/predict_torch.h"

namespace fp8lab::closed_form {
namespace {

Bytes logits(const CellNumbers& cell) { return cell.plain(cell.shape.vocabulary); }

/// Logits in FP32 are not copied.
Bytes copied_logits(const CellNumbers& cell) { return cell.shape.element == kF32 ? 0 : log_probabilities(cell); }

/// The sums over ranks that live in `reduce_dtype` next to the shards in the gradients' own type.
Bytes copied_sums(const CellNumbers& cell, const GradientBytes& of) {
  return cell.shape.reduced == cell.shape.element ? 0 : cell.in_reduction(of.shards);
}

}  // namespace

Bytes saved_by_silu(const CellNumbers& cell) {
  const bool gated = cell.shape.form.activation_inputs == 2;
  return cell.in_torch && gated && !cell.casts.operands ? cell.plain(cell.shape.ffn) : 0;
}

Bytes log_probabilities(const CellNumbers& cell) { return cell.shape.tokens * cell.shape.vocabulary * kF32; }

Schedule torch_cross_entropy(const CellNumbers& cell) {
  const Bytes copy = copied_logits(cell);
  return allocate(copy + log_probabilities(cell), Owner::kF32Logits) + release(copy, Owner::kF32Logits);
}

Schedule torch_cross_entropy_backward(const CellNumbers& cell) {
  // The gradients of log-probabilities and of logits, next to the log-probabilities.
  const Bytes each = log_probabilities(cell);
  return allocate(2 * each, Owner::kF32Logits) + release(2 * each, Owner::kF32Logits) +
         allocate(logits(cell), Owner::kLogits) + release(each, Owner::kF32Logits);
}

Schedule torch_reduction(const CellNumbers& cell, const GradientBytes& of) {
  const Bytes sums = copied_sums(cell, of);
  return allocate(cell.in_reduction(of.moved), Owner::kReductions) + release(of.unsharded, Owner::kGradients) +
         allocate(sums, Owner::kReductions) + allocate(of.shards, Owner::kGradients) +
         release(cell.sharding.replicas > 1 ? 0 : sums, Owner::kReductions);
}

Bytes kept_by_reduction(const CellNumbers& cell, const GradientBytes& of) {
  if (!cell.in_torch || !cell.sharding.sharded) return 0;
  return cell.in_reduction(of.moved) + (cell.sharding.replicas > 1 ? copied_sums(cell, of) : 0);
}

}  // namespace fp8lab::closed_form
