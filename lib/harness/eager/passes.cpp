#include <algorithm>
#include <utility>

#include "harness/eager/training.h"

namespace fp8lab::eager {
namespace {

constexpr Bytes kToken = 8;

}  // namespace

void Training::forward() {
  if (last_ != nullptr && first_ == nullptr) last_->before_forward(nullptr);
  Block stream = 0;
  if (has_embedding()) {
    if (first_ != nullptr) first_->before_forward(after(-1));
    stream = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
    if (n_.scales_embeddings) {
      const Block scaled = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
      heap_.free(stream);
      stream = scaled;
    }
    if (n_.learned_positions) {
      Block rows = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
      Block sum = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
      heap_.free(rows);
      heap_.free(stream);
      stream = sum;
    }
    if (first_ != nullptr) first_->after_forward();
  }
  for (Bytes i = 0; i < n_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    modules_[at].before_forward(after(i));
    const bool is_input = i == 0 && !has_embedding();
    Block input = is_input ? tokens_ : stream;
    stream = layers_[at]->forward(input, is_input);
    modules_[at].after_forward();
    if (i < n_.frozen && !is_input) heap_.free(input);
  }
  if (!has_embedding()) {
    heap_.free(shared_.gathered);
    loss_forward(stream);
    return;
  }
  if (first_ != nullptr) last_->before_forward(nullptr);
  const bool composed = n_.on_host() && n_.gated && n_.element != kF32;
  if (composed) saved_.input_f32 = heap_.allocate(n_.rows_f32(n_.hidden), Owner::kSaved);
  if (n_.on_host() && n_.gated) saved_.normalized = heap_.allocate(n_.rows_f32(n_.hidden), Owner::kSaved);
  normed_ = heap_.allocate(n_.rows(n_.hidden), Owner::kSaved);
  const Bytes statistic = n_.tokens * (n_.on_host() && !n_.gated ? n_.element : kF32);
  if (!n_.gated) saved_.mean = heap_.allocate(statistic, Owner::kSaved);
  saved_.deviation = heap_.allocate(statistic, Owner::kSaved);
  if (ends_at_norm() && n_.on_host() && n_.gated) {  // only the norm's weight takes a gradient
    heap_.free(saved_.input_f32);
    heap_.free(saved_.deviation);
    heap_.free(stream);
  }
  if (composed) heap_.free(stream);
  stream_ = stream;
  if (n_.loss_chunks > 1) {
    heap_.free(shared_.gathered);
    if (has_group_of_head()) last_->reshard();
    of_normed_ = chunked_loss();
    return;
  }
  Block logits = heap_.allocate(n_.rows(n_.vocabulary), Owner::kLogits);
  heap_.begin_product();
  heap_.free(shared_.gathered);
  if (n_.tied && n_.frozen > 0) heap_.free(normed_);  // saved for the gradient of the head's weight
  loss_forward(logits);
}

void Training::embedding_backward(Block gradient) {
  if (n_.scales_embeddings) {
    const Block of_rows = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(gradient);
    gradient = of_rows;
  }
  add_gradient(embedding_);
  heap_.free(of_tied_);
  // The worker repeats positions for every sequence. Of one sequence the stream's gradient itself becomes theirs.
  const bool is_theirs = !n_.in_titan() && n_.batch == 1;
  if (is_theirs) heap_.free(gradient);
  if (n_.learned_positions) add_gradient(positions_);
  heap_.free(gradient);
}

void Training::backward() {
  Block gradient = n_.loss_chunks > 1 ? std::exchange(of_normed_, 0) : loss_backward();
  if (has_embedding()) {
    // The program names no module to gather ahead of the root's backward, so FSDP2 takes the last group of forward.
    const bool takes_group = n_.expert_parallel > 1 && first_ == nullptr;
    last_->before_backward(takes_group ? nullptr : before(n_.layers));
    if (takes_group) before(n_.layers)->prefetch_last();
    gradient = norm_backward(n_.loss_chunks > 1 ? gradient : head_backward(gradient));
    if (reduces_ && (!n_.tied || n_.frozen > 0) && buckets_->is_first_gradient_reduced_alone()) buckets_->reduce();
    shared_.free_all_reduced(heap_);  // a loss in parts has reduced the head's gradient, and this group reduces again
    if (first_ != nullptr && !ends_at_norm()) last_->after_backward();
  }
  for (Bytes i = n_.layers; i-- > n_.frozen;) {
    const auto at = static_cast<std::size_t>(i);
    modules_[at].before_backward(before(i));
    gradient = layers_[at]->backward(gradient);
    if (i > n_.frozen || n_.frozen == 0) modules_[at].after_backward();
    if (reduces_) buckets_->reduce();
  }
  if (n_.frozen > 0) {
    heap_.free(gradient);
    end_backward_at_frozen();
  } else if (has_embedding()) {
    if (first_ != nullptr) first_->before_backward(nullptr);
    embedding_backward(gradient);
    (first_ != nullptr ? first_ : last_)->after_backward();
  } else {
    heap_.free(gradient);
  }
  shared_.finalize_backward(heap_);
}

// FSDP2 learns from the gradient of a group's input that its backward has ended. Groups without one end in its callback
// at the end of backward, in the order of modules. The trained layer behind the last frozen one has gathered that one's
// parameters, as before every backward of a group, and FSDP2 frees them here.
void Training::end_backward_at_frozen() {
  if (has_embedding()) (first_ != nullptr ? first_ : last_)->after_backward();
  for (Bytes i = 0; i <= std::min(n_.frozen, n_.layers - 1); ++i)
    modules_[static_cast<std::size_t>(i)].after_backward();
  if (first_ != nullptr && ends_at_norm()) last_->after_backward();
  for (Module& module : modules_) module.finalize_backward();
}

void Training::pass(std::int64_t step, std::int64_t micro_batch, std::int64_t steps) {
  const bool is_last_of_step = micro_batch + 1 == passes_;
  reduces_ = buckets_.has_value() && is_last_of_step;
  heap_.free(loss_);
  heap_.free(weights_of_loss_);
  heap_.free(tokens_);
  heap_.free(targets_);
  const Bytes row = has_embedding() ? n_.tokens * kToken : n_.rows(n_.hidden);
  tokens_ = heap_.allocate(row, Owner::kInputs);
  if (has_embedding() || cell_.training.loss == Loss::kMse) targets_ = heap_.allocate(row, Owner::kInputs);
  heap_.enter(Phase::kForward);
  if (buckets_) buckets_->before_forward(step > 0);
  forward();
  mark("memory.end_of_forward_bytes");
  if (is_last_of_step && step + 1 == steps) memory_.at_end_of_forward = heap_.by_owner();
  heap_.enter(Phase::kBackward);
  Block one = heap_.allocate(kF32, Owner::kTemporaries);
  backward();
  heap_.free(one);
  mark("memory.end_of_backward_bytes");
}

}  // namespace fp8lab::eager
