#include "harness/eager/fsdp2.h"

#include <utility>

namespace fp8lab::eager {

void Communication::finalize_backward(Heap& heap) {
  heap.free(reduced);
  free_all_reduced(heap);
}

void Communication::free_all_reduced(Heap& heap) {
  for (Block& block : all_reduced) heap.free(block);
  all_reduced.clear();
}

Group::Group(const Numbers& numbers, Heap& heap, Communication& shared, std::vector<Parameter*> parameters,
             bool reshards)
    : numbers_(numbers), heap_(heap), shared_(shared), parameters_(std::move(parameters)), reshards_(reshards) {}

Bytes Group::shard_of(const Parameter& parameter) const {
  if (parameter.divides_experts) return parameter.elements() / numbers_.shards;
  return (parameter.rows + numbers_.shards - 1) / numbers_.shards * parameter.columns;
}

std::vector<Bytes> Group::shard_elements(bool only_trained) const {
  std::vector<Bytes> out;
  for (const Parameter* parameter : parameters_)
    if (!only_trained || !parameter->is_frozen) out.push_back(shard_of(*parameter));
  return out;
}

Bytes Group::gathered_bytes(const Parameter& parameter) const {
  return shard_of(parameter) * (parameter.is_float8 ? 1 : numbers_.element);
}

void Group::make() {
  for (Parameter* parameter : parameters_)
    if (numbers_.sharded)
      shards_.push_back(heap_.allocate(shard_of(*parameter) * numbers_.stored, Owner::kParameters));
    else
      parameter->value = heap_.allocate(parameter->elements() * numbers_.stored, Owner::kParameters);
}

void Group::prefetch() {
  if (!numbers_.sharded || parameters_.empty() || is_unsharded_ || is_pending_) return;
  is_pending_ = true;
  if (numbers_.shards == 1) return;  // copied from the sharded parameters
  std::vector<Block> casts;
  Bytes others = 0, all = 0;
  for (const Parameter* parameter : parameters_) {
    all += gathered_bytes(*parameter);
    if (parameter->is_float8)
      casts.push_back(cast_to_float8(heap_, shard_of(*parameter), numbers_.stored == kF32, Stream::kGathers));
    else if (numbers_.stored != numbers_.element)
      others += gathered_bytes(*parameter);
  }
  casts.push_back(heap_.allocate(others, Owner::kGathers, Stream::kGathers));
  gathering_ = heap_.allocate(numbers_.shards * all, Owner::kGathers, Stream::kGathers);
  shared_.gathered_in_step += numbers_.shards * all;
  for (Block& cast : casts) heap_.free(cast);
}

void Group::copy_out(bool in_forward) {
  if (!is_pending_) return;
  is_pending_ = false;
  is_unsharded_ = true;
  if (in_forward) heap_.free(shared_.gathered);
  const bool casts = numbers_.shards == 1 && numbers_.stored != numbers_.element;
  std::vector<Block> parts;  // parameters that are divided in their second dimension are copied twice
  for (Parameter* parameter : parameters_) {
    const Bytes bytes = numbers_.shards * gathered_bytes(*parameter);
    Block cast = casts ? heap_.allocate(bytes, Owner::kGathers) : 0;
    parameter->value = heap_.allocate(bytes, Owner::kUnsharded);
    if (parameter->divides_experts) parts.push_back(heap_.allocate(bytes, Owner::kGathers));
    heap_.free(cast);
  }
  for (Block& part : parts) heap_.free(part);
  if (in_forward)
    shared_.gathered = std::exchange(gathering_, 0);
  else
    heap_.free(gathering_);
}

void Group::reshard() {
  if (!is_unsharded_) return;
  is_unsharded_ = false;
  for (Parameter* parameter : parameters_) heap_.free(parameter->value);
}

void Group::before_forward() {
  prefetch();
  copy_out(true);
}

void Group::after_forward() {
  if (numbers_.sharded && reshards_) reshard();
}

void Group::before_backward(Group* next) {
  if (!numbers_.sharded) return;
  prefetch();
  copy_out(false);
  if (next != nullptr) next->prefetch();
}

void Group::after_backward() {
  if (!numbers_.sharded || parameters_.empty()) return;
  reshard();
  std::vector<Parameter*> with_gradients;
  for (Parameter* parameter : parameters_)
    if (parameter->gradient != 0) with_gradients.push_back(parameter);
  reduce(with_gradients, gradients_);
}

void Group::add_part(Parameter& parameter) {
  if (!numbers_.sharded || numbers_.reduced == numbers_.element) return;
  Block converted = heap_.allocate(parameter.elements() * numbers_.reduced, Owner::kGradients);
  heap_.free(parameter.gradient);
  if (added_up_ == 0) std::swap(added_up_, converted);
  heap_.free(converted);
}

void Group::end_parts(Parameter& parameter, bool reduces) {
  if (added_up_ != 0) {
    parameter.gradient = std::exchange(added_up_, 0);
    parameter.is_gradient_wide = true;
  }
  if (reduces) reduce({&parameter}, gradients_of_parts_);
}

void Group::reduce(const std::vector<Parameter*>& parameters, std::vector<Block>& sum) {
  heap_.free(shared_.reduced);
  if (parameters.empty()) return;
  Block divided = 0;
  for (Parameter* parameter : parameters) {
    if (!parameter->divides_experts) continue;
    heap_.free(divided);
    divided = std::exchange(parameter->gradient,
                            heap_.allocate(parameter->elements() * numbers_.element, Owner::kReductions));
  }
  heap_.free(divided);
  Bytes elements = 0;
  for (const Parameter* parameter : parameters) elements += shard_of(*parameter);
  const Bytes packed = numbers_.shards * elements * numbers_.reduced;
  shared_.reduced = heap_.allocate(packed, Owner::kReductions);
  if (numbers_.shards > 1) shared_.reduced_in_step += packed;
  for (Parameter* parameter : parameters) {
    heap_.free(parameter->gradient);
    parameter->is_gradient_wide = false;
  }
  Block output = heap_.allocate(elements * numbers_.reduced, Owner::kGradients, Stream::kReductions);
  // gloo reduces a copy of its input.
  Block copy = numbers_.on_host() && numbers_.shards > 1 ? heap_.allocate(packed, Owner::kReductions) : 0;
  heap_.free(copy);
  if (numbers_.replicas > 1) shared_.all_reduced_in_step += elements * numbers_.reduced;
  const auto drop = [&](Block block) {
    if (numbers_.replicas > 1)
      shared_.all_reduced.push_back(block);
    else
      heap_.free(block);
  };
  if (numbers_.reduced != numbers_.stored) {
    Block cast = heap_.allocate(elements * numbers_.stored, Owner::kGradients, Stream::kReductions);
    drop(output);
    output = cast;
  }
  if (sum.empty())
    sum.push_back(output);
  else if (numbers_.reduced != numbers_.stored)
    heap_.free(output);  // added to the gradients of earlier micro-batches
  else
    drop(output);
}

void Group::finalize_backward() {
  heap_.free(gathering_);
  is_pending_ = false;
}

void Group::drop_gradients() {
  for (std::vector<Block>* sum : {&gradients_, &gradients_of_parts_}) {
    for (Block& gradient : *sum) heap_.free(gradient);
    sum->clear();
  }
  for (Parameter* parameter : parameters_) heap_.free(parameter->gradient);
}

}  // namespace fp8lab::eager
