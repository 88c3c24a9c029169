#include "harness/predict/predict_ends.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kToken = 4;

}  // namespace

EndsAccount::EndsAccount(const CellNumbers& cell)
    : cell_(cell),
      present_(cell.shape.vocabulary > 0),
      sharded_(cell.sharding.sharded),
      adds_(!cell.sharding.sharded),
      tied_(cell.shape.tied_head),
      dropout_(cell.shape.dropout),
      frozen_(cell.frozen),
      stream_(cell.plain(cell.shape.hidden)) {
  if (!present_) {
    output = stream_;
    return;
  }
  by_token_ = cell.shape.tokens * kF32;
  statistics_ = cell.shape.form.norm_statistics * by_token_;
  logits_ = cell.plain(cell.shape.vocabulary);
  table_ = cell.shape.vocabulary * cell.shape.hidden * cell.shape.element;
  positions_ = cell.shape.learned_positions ? cell.shape.seq * cell.shape.hidden * cell.shape.element : 0;
  norm_gradients_ = cell.shape.form.norm_parameters * cell.shape.hidden * cell.shape.element;
  parameters.push_back(table_parameter(cell, cell.shape.vocabulary, cell.shape.hidden));
  if (cell.shape.learned_positions) parameters.push_back(table_parameter(cell, cell.shape.seq, cell.shape.hidden));
  for (std::int64_t i = 0; i < cell.shape.form.norm_parameters; ++i)
    parameters.push_back(vector_parameter(cell, cell.shape.hidden));
  if (!tied_) parameters.push_back(table_parameter(cell, cell.shape.vocabulary, cell.shape.hidden));
  for (std::size_t i = 0; frozen_ && i < (cell.shape.learned_positions ? 2U : 1U); ++i) parameters[i].frozen = true;
  for (const ParameterNumbers& parameter : parameters) {
    kept += parameter.kept;
    gather += parameter.forward;
    if (parameter.frozen) continue;
    gradients += parameter.shard;
    add_gradient(parameter, reduced_gradients);
  }
  groups = 1;
  inputs = 2 * kToken * cell.shape.tokens;
  // The norm's result, and the logits with the logarithms of their sums.
  of_loss_ = by_token_;
  held = statistics_ + (head_is_frozen() ? 0 : stream_) + logits_ + of_loss_ + gather.unsharded_parameters;
}

Schedule EndsAccount::made_by(Schedule ParameterNumbers::* stage) const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters) schedule += owned_by(Owner::kParameters, parameter.*stage);
  return schedule;
}

Schedule EndsAccount::enter(bool evaluates) const {
  if (!present_) return {};
  const Schedule masked = dropout_ && !evaluates ? allocate(stream_) + release(stream_) : Schedule{};
  return (sharded_ ? gather.begin() + gather.finish() : Schedule{}) + allocate(stream_) + masked;
}

Schedule EndsAccount::leave() const {
  return present_ ? allocate(stream_ + statistics_) + allocate(logits_, Owner::kLogits) : Schedule{};
}

/// The losses by token live until their mean is there.
Schedule EndsAccount::loss() const { return allocate(kF32 + 2 * by_token_) + release(by_token_); }

/// The gradient of the logits is written over them. Both products read it; then the norm's gradients follow.
Schedule EndsAccount::backward(MicroBatch at) const {
  if (!present_) return allocate(stream_) + release(kF32);
  const bool added = adds_ && !at.first_of_step;
  const auto made = [&](Bytes bytes) {
    return allocate(bytes, Owner::kGradients) + release(added ? bytes : 0, Owner::kGradients);
  };
  return release(kF32 + by_token_) + allocate(stream_) + made(head_is_frozen() ? 0 : table_) +
         release(logits_, Owner::kLogits) + allocate(stream_) + made(norm_gradients_) +
         release((head_is_frozen() ? 2 : 3) * stream_ + statistics_);
}

/// Rows are added to a gradient that is there: a tied head's, or an earlier micro-batch's.
Schedule EndsAccount::embedding_backward(MicroBatch at, bool has_gradient) const {
  if (!present_) return {};
  if (frozen_) {
    const Schedule dropped_gradient = release(has_gradient ? stream_ : 0);
    if (!sharded_) return dropped_gradient;
    return release(gather.unsharded_parameters, Owner::kGathered) + cell_.reduction(reduced_gradients) +
           release(at.first_of_step ? 0 : gradients, Owner::kGradients) + dropped_gradient;
  }
  const bool there = adds_ && !at.first_of_step;
  const Schedule masked = dropout_ ? allocate(stream_) + release(stream_) : Schedule{};
  const Schedule rows = allocate(there || tied_ ? 0 : table_, Owner::kGradients) +
                        allocate(there ? 0 : positions_, Owner::kGradients) + release(stream_);
  if (!sharded_) return masked + rows;
  return masked + rows + release(gather.unsharded_parameters, Owner::kGathered) + cell_.reduction(reduced_gradients) +
         release(at.first_of_step ? 0 : gradients, Owner::kGradients);
}

/// Nothing is saved, and the group's parameters are freed before the loss.
Schedule EndsAccount::validation() const {
  const Schedule made = leave() + release(present_ ? 2 * stream_ + statistics_ : 0) +
                        release(gather.unsharded_parameters, Owner::kGathered);
  return made + loss() + release(kF32 + of_loss_) + (present_ ? release(logits_, Owner::kLogits) : release(stream_));
}

}  // namespace fp8lab::closed_form
