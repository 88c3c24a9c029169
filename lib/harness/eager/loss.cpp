#include <utility>

#include "harness/eager/training.h"

namespace fp8lab::eager {

void Training::loss_forward(Block output) {
  if (!has_embedding()) {
    const bool is_mse = cell_.training.loss == Loss::kMse;
    // The storage of mse_loss's result has the size of its input, which FakeTensorMode does not show.
    const bool has_all = is_mse && n_.operators != Operators::kCudaOnShapes;
    loss_ = heap_.allocate(has_all ? n_.rows(n_.hidden) : n_.element, Owner::kTemporaries);
    Block squares = is_mse && n_.operators == Operators::kCuda
                        ? heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries)  // inside of the kernel
                        : 0;
    heap_.free(squares);
    if (is_mse)
      output_ = output;
    else
      heap_.free(output);
    return;
  }
  log_probabilities_ = cross_entropy(n_.tokens);
  heap_.free(output);
}

Block Training::cross_entropy(Bytes tokens) {
  const Bytes all = tokens * n_.vocabulary * kF32;
  Block copy = n_.element == kF32 ? 0 : heap_.allocate(all, Owner::kLogits);
  const Block log_probabilities = heap_.allocate(all, Owner::kLogits);
  loss_ = heap_.allocate(kF32, Owner::kTemporaries);
  weights_of_loss_ = heap_.allocate(kF32, Owner::kTemporaries);
  heap_.free(copy);
  return log_probabilities;
}

Block Training::loss_backward() {
  if (!has_embedding()) {
    if (cell_.training.loss != Loss::kMse) return 0;
    const Block gradient = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(output_);
    return gradient;
  }
  return cross_entropy_backward(n_.tokens, std::exchange(log_probabilities_, 0));
}

Block Training::cross_entropy_backward(Bytes tokens, Block log_probabilities) {
  const Bytes all = tokens * n_.vocabulary * kF32;
  Block of_probabilities = heap_.allocate(all, Owner::kLogits);
  Block of_copy = heap_.allocate(all, Owner::kLogits);
  heap_.free(of_probabilities);
  heap_.free(log_probabilities);
  heap_.free(weights_of_loss_);
  if (n_.element == kF32) return of_copy;
  const Block of_logits = heap_.allocate(tokens * n_.vocabulary * n_.element, Owner::kLogits);
  heap_.free(of_copy);
  return of_logits;
}

Block Training::chunked_loss() {
  Parameter& head = n_.tied ? embedding_ : head_;
  const Bytes tokens = n_.tokens / n_.loss_chunks, rows = tokens * n_.hidden;
  Block gradient = heap_.allocate(n_.rows_f32(n_.hidden), Owner::kTemporaries), logits = 0;
  if (has_group_of_head()) last_->before_backward(nullptr);  // gathers the head once for all parts
  for (Bytes part = 0; part < n_.loss_chunks; ++part) {
    Block of_part_before = std::exchange(logits, heap_.allocate(tokens * n_.vocabulary * n_.element, Owner::kLogits));
    heap_.begin_product();
    heap_.free(of_part_before);
    heap_.free(loss_);
    Block of_logits = cross_entropy_backward(tokens, cross_entropy(tokens));
    make_gradient(n_, heap_, head);
    heap_.begin_product(true);
    Block of_part = heap_.allocate(rows * n_.element, Owner::kTemporaries);
    heap_.free(of_logits);
    heap_.free(head.added);
    last_->groups().front().add_part(head);
    if (part + 1 == n_.loss_chunks) last_->groups().front().end_parts(head, has_group_of_head());
    Block in_f32 = n_.element == kF32 ? 0 : heap_.allocate(rows * kF32, Owner::kTemporaries);
    heap_.free(in_f32);
    heap_.free(of_part);
  }
  if (has_group_of_head()) last_->reshard();
  if (n_.element != kF32) {
    Block cast = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    heap_.free(gradient);
    gradient = cast;
  }
  heap_.free(logits);
  heap_.free(normed_);
  return gradient;
}

Block Training::head_backward(Block of_logits) {
  Parameter& head = n_.tied ? embedding_ : head_;
  make_gradient(n_, heap_, head);
  heap_.begin_product(true);
  Block of_normed = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
  heap_.free(of_logits);
  heap_.free(normed_);
  if (n_.tied)
    std::swap(of_tied_, head.added);
  else
    heap_.free(head.added);
  return of_normed;
}

Block Training::norm_backward(Block of_normed) {
  Block of_stream = 0;
  if (saved_.normalized != 0) {
    for (Parameter& vector : norm_) add_gradient(vector);
    of_stream = composed_norm_backward(n_, heap_, saved_, of_normed, {n_.hidden}, !ends_at_norm());
  } else {
    if (!ends_at_norm()) of_stream = heap_.allocate(n_.rows(n_.hidden), Owner::kTemporaries);
    for (Parameter& vector : norm_) add_gradient(vector);
    heap_.free(of_normed);
    heap_.free(saved_.mean);
    heap_.free(saved_.deviation);
  }
  heap_.free(stream_);
  return of_stream;
}

}  // namespace fp8lab::eager
