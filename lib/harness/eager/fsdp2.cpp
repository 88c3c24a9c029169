#include "harness/eager/fsdp2.h"

#include <utility>

namespace fp8lab::eager {

void Communication::finalize_backward(Heap& heap) {
  free_reduced(heap);
  free_all_reduced(heap);
}

void Communication::free_reduced(Heap& heap) {
  for (Block& block : reduced) heap.free(block);
  reduced.clear();
}

void Communication::free_all_reduced(Heap& heap) {
  for (Block& block : all_reduced) heap.free(block);
  all_reduced.clear();
}

Group::Group(const Numbers& numbers, Heap& heap, Communication& shared, std::vector<Parameter*> parameters,
             Options options)
    : numbers_(numbers), heap_(heap), shared_(shared), parameters_(std::move(parameters)), options_(options) {}

Bytes Group::shard_of(const Parameter& parameter) const {
  if (parameter.divides_experts) return parameter.elements() / options_.shards;
  return (parameter.rows + options_.shards - 1) / options_.shards * parameter.columns;
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
  if (options_.shards == 1) return;  // copied from the sharded parameters
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
  gathering_ = heap_.allocate(options_.shards * all, Owner::kGathers, Stream::kGathers);
  shared_.moved.gathered += options_.shards * all;
  shared_.moved.received += (options_.shards - 1) * all;
  for (Block& cast : casts) heap_.free(cast);
}

void Group::copy_out(bool in_forward) {
  if (!is_pending_) return;
  is_pending_ = false;
  is_unsharded_ = true;
  if (in_forward) heap_.free(shared_.gathered);
  const bool casts = options_.shards == 1 && numbers_.stored != numbers_.element;
  std::vector<Block> parts;  // parameters that are divided in their second dimension are copied twice
  for (Parameter* parameter : parameters_) {
    const Bytes bytes = options_.shards * gathered_bytes(*parameter);
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
  if (numbers_.sharded && options_.reshards) reshard();
}

void Group::before_backward() {
  if (!numbers_.sharded) return;
  prefetch();
  copy_out(false);
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
  if (options_.is_last) shared_.free_reduced(heap_);
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
  const Bytes packed = options_.shards * elements * numbers_.reduced;
  shared_.reduced.push_back(heap_.allocate(packed, Owner::kReductions));
  if (options_.shards > 1) {
    shared_.moved.reduced += packed;
    shared_.moved.sent += packed / options_.shards * (options_.shards - 1);
  }
  for (Parameter* parameter : parameters) {
    heap_.free(parameter->gradient);
    parameter->is_gradient_wide = false;
  }
  Block output = heap_.allocate(elements * numbers_.reduced, Owner::kGradients, Stream::kReductions);
  // gloo reduces a copy of its input.
  Block copy = numbers_.on_host() && options_.shards > 1 ? heap_.allocate(packed, Owner::kReductions) : 0;
  heap_.free(copy);
  if (numbers_.replicas > 1) shared_.moved.all_reduced += elements * numbers_.reduced;
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

Module::Module(const Numbers& numbers, Heap& heap, Communication& shared, const std::vector<Parameter*>& parameters,
               bool reshards) {
  std::vector<Parameter*> own, of_experts;
  for (Parameter* parameter : parameters)
    (parameter->is_of_experts && numbers.expert_parallel > 1 ? of_experts : own).push_back(parameter);
  const bool has_experts = !of_experts.empty();
  groups_.emplace_back(
      numbers, heap, shared, std::move(own),
      Group::Options{.reshards = reshards, .shards = numbers.shards_of(false), .is_last = !has_experts});
  if (has_experts)
    groups_.emplace_back(numbers, heap, shared, std::move(of_experts),
                         Group::Options{.reshards = reshards, .shards = numbers.shards_of(true)});
}

void Module::before_forward(Module* next) {
  for (Group& group : groups_) group.before_forward();
  if (next == nullptr) return;
  for (Group& group : next->groups_) group.prefetch();
}

void Module::after_forward() {
  for (Group& group : groups_) group.after_forward();
}

void Module::before_backward(Module* next) {
  for (Group& group : groups_) group.before_backward();
  if (next == nullptr) return;
  for (auto group = next->groups_.rbegin(); group != next->groups_.rend(); ++group) group->prefetch();
}

void Module::after_backward() {
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) group->after_backward();
}

void Module::reshard() {
  for (Group& group : groups_) group.reshard();
}

void Module::finalize_backward() {
  for (Group& group : groups_) group.finalize_backward();
}

}  // namespace fp8lab::eager
