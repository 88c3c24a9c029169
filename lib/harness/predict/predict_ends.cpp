#include "harness/predict/predict_ends.h"

#include <algorithm>

#include "core/shape.h"

namespace fp8lab::closed_form {
namespace {

constexpr Bytes kF32 = 4;
constexpr Bytes kTokenId = 8;  // PyTorch's indices are 64-bit

}  // namespace

void EndsAccount::Group::add(const ParameterNumbers& parameter) {
  gradients += parameter.shard;
  unsharded_gradients += parameter.unsharded;
  forward += parameter.forward;
  backward += parameter.backward;
}

EndsAccount::EndsAccount(const CellNumbers& cell, const LanguageModel* model)
    : present_(model != nullptr),
      sharded_(cell.sharding.sharded),
      reshards_(cell.sharding.reshards),
      adds_(!cell.sharding.sharded),
      tokens_(cell.tokens),
      chunks_(model ? model->loss_chunks : 1),
      vocabulary_(model ? model->vocabulary : 0),
      element_(cell.element),
      stream_(cell.plain(cell.hidden)) {
  if (!model) return;
  statistics_ = cell.form.norm_statistics * tokens_ * kF32;
  table_ = vocabulary_ * cell.hidden * element_;
  norm_gradients_ = cell.form.norm_parameters * cell.hidden * element_;
  const ParameterNumbers table = table_parameter(cell, vocabulary_, cell.hidden);
  embedding_.add(table);
  head_.add(table);
  parameters = {table, table};
  for (std::int64_t i = 0; i < cell.form.norm_parameters; ++i) {
    parameters.push_back(vector_parameter(cell, cell.hidden));
    head_.add(parameters.back());
  }
  for (const ParameterNumbers& parameter : parameters) kept += parameter.kept;
  for (const Group* group : {&embedding_, &head_}) {
    gradients += group->gradients;
    unsharded_gradients += group->unsharded_gradients;
    forward_gather += group->forward;
    backward_gather += group->backward;
  }
  groups = 2;
  inputs = 2 * kTokenId * tokens_;
  // The layers' output, which the last norm reads, is the run's.
  const bool saves_logits = chunks_ == 1;
  held = statistics_ + stream_ + (saves_logits ? tokens_ * vocabulary_ * kF32 : table_);
  if (sharded_ && !reshards_) held += forward_gather.unsharded_parameters;
}

Schedule EndsAccount::made() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters)
    schedule += owned_by(Owner::kParameters, parameter.made_unsharded + parameter.initialized);
  return schedule;
}

Schedule EndsAccount::resharded(const Group& group) const {
  return release(sharded_ && reshards_ ? group.forward.unsharded_parameters : 0, Owner::kGathered);
}

Schedule EndsAccount::enter() const { return gathered(embedding_.forward) + resharded(embedding_); }

/// The copy in FP32 lives until the log-probabilities are there; the logits until the loss is.
Schedule EndsAccount::loss_forward(std::int64_t tokens) const {
  const Bytes logits = tokens * vocabulary_ * element_, f32 = tokens * vocabulary_ * kF32;
  const Bytes copy = element_ == kF32 ? 0 : f32;
  return allocate(logits, Owner::kLogits) + allocate(copy, Owner::kLogits) + allocate(f32, Owner::kLogits) +
         release(copy + logits, Owner::kLogits);
}

/// The gradient of the log-probabilities, then that of the FP32 logits, then that of the logits.
Schedule EndsAccount::loss_backward(std::int64_t tokens) const {
  const Bytes logits = tokens * vocabulary_ * element_, f32 = tokens * vocabulary_ * kF32;
  const Schedule of_copy =
      allocate(f32, Owner::kLogits) + allocate(f32, Owner::kLogits) + release(2 * f32, Owner::kLogits);
  return element_ == kF32 ? of_copy : of_copy + allocate(logits, Owner::kLogits) + release(f32, Owner::kLogits);
}

/// The gradients of the head's input and of the head. `first`: no gradient is there to add to.
Schedule EndsAccount::head_backward(std::int64_t tokens, bool first) const {
  return allocate(tokens * (stream_ / tokens_)) + allocate(table_, Owner::kGradients) +
         release(first ? 0 : table_, Owner::kGradients) + release(tokens * vocabulary_ * element_, Owner::kLogits);
}

Schedule EndsAccount::leave(bool first_of_step) const {
  if (!present_) return {};
  Schedule schedule = gathered(head_.forward) + allocate(statistics_ + stream_);
  if (chunks_ == 1) return schedule + loss_forward(tokens_) + resharded(head_);
  const bool adds_to_earlier = adds_ && !first_of_step;
  const std::int64_t piece = ceil_div(tokens_, chunks_);
  for (std::int64_t done = 0; done < tokens_; done += piece) {
    const std::int64_t now = std::min(piece, tokens_ - done);
    const bool first = done == 0 && !adds_to_earlier;
    schedule += loss_forward(now) + loss_backward(now) + head_backward(now, first);
  }
  // The head's input was the last to read it: only the gradient of it is needed from here on.
  return schedule + release(stream_) + resharded(head_);
}

Schedule EndsAccount::reduced(const Group& group, bool first_of_step) const {
  if (!sharded_) return {};
  const Bytes unsharded = reshards_ ? group.backward.unsharded_parameters : group.forward.unsharded_parameters;
  return release(unsharded, Owner::kGathered) + allocate(group.gradients, Owner::kGradients) +
         release(group.unsharded_gradients, Owner::kGradients) +
         release(first_of_step ? 0 : group.gradients, Owner::kGradients);
}

Schedule EndsAccount::backward(bool first_of_step) const {
  if (!present_) return allocate(stream_);
  const bool added = adds_ && !first_of_step;
  Schedule schedule = reshards_ ? gathered(head_.backward) : Schedule{};
  if (chunks_ == 1) schedule += loss_backward(tokens_) + head_backward(tokens_, !added) + release(stream_);
  // The norm, whose input is the layers' output.
  schedule += allocate(stream_) + allocate(norm_gradients_, Owner::kGradients) +
              release(added ? norm_gradients_ : 0, Owner::kGradients) + release(stream_ + statistics_);
  return schedule + reduced(head_, first_of_step);
}

Schedule EndsAccount::embedding_backward(bool first_of_step) const {
  if (!present_) return {};
  const bool added = adds_ && !first_of_step;
  return (reshards_ ? gathered(embedding_.backward) : Schedule{}) + allocate(stream_) +
         allocate(table_, Owner::kGradients) + release(added ? table_ : 0, Owner::kGradients) + release(stream_) +
         reduced(embedding_, first_of_step);
}

}  // namespace fp8lab::closed_form
