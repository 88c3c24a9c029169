#include "fsdp/parameter_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fsdp/sharding_hooks.h"

namespace fp8lab {
namespace {

/// Parts of one parameter: data and scales of two orientations.
constexpr std::size_t kMostParts = 4;

}  // namespace

ParameterGroup::ParameterGroup(Runtime& runtime, std::string name, std::span<Parameter* const> parameters, Mesh& mesh,
                               const std::vector<ShardingState>& states, const GroupOptions& options)
    : name_(std::move(name)),
      mesh_(mesh),
      reshards_after_forward_(state_of(states, name_).reshard_after_forward),
      gathers_by_pass_(make_sharding_hooks(runtime.behaviors)->gathers_by_pass(states, name_)),
      recomputes_(options.recomputes) {
  for (Parameter* parameter : parameters)
    parameters_.push_back(std::make_unique<ShardedParameter>(runtime, *parameter, mesh, options.reduce_dtype));
  for (const auto& parameter : parameters_)
    if (!parameter->unsharded().frozen) trained_.push_back(parameter.get());
  communications_.push_back({.shards = &mesh.shard_group(), .gathers = {}, .scatters = {}});
  const bool has_experts = std::ranges::any_of(
      parameters_, [&](const auto& parameter) { return &parameter->shards() != &mesh.shard_group(); });
  if (has_experts) communications_.push_back({.shards = &mesh.expert_shard_group(), .gathers = {}, .scatters = {}});
  for (Communication& communication : communications_) {
    communication.gathers.reserve(kMostParts * parameters_.size());
    communication.scatters.reserve(parameters_.size());
  }
  reduce_parts_.reserve(parameters_.size());
}

std::vector<std::string> ParameterGroup::warnings() const {
  std::vector<std::string> warnings;
  for (const auto& parameter : parameters_)
    if (!parameter->refusal().empty())
      warnings.push_back(
          fmt::format("{}: {}; it stays in high precision", parameter->unsharded().name, parameter->refusal()));
  return warnings;
}

ParameterGroup::Communication& ParameterGroup::communication_of(const ShardedParameter& parameter) {
  return &parameter.shards() == communications_.front().shards ? communications_.front() : communications_.back();
}

Orientations ParameterGroup::usage(Pass pass) const {
  if (!gathers_by_pass_) return {.rowwise = true, .columnwise = true};
  if (pass == Pass::kForward) return {.rowwise = true, .columnwise = false};
  return {.rowwise = recomputes_, .columnwise = true};
}

// Gathers ahead write to the unsharded parameters, which are destroyed with this group, so they must have finished.
ParameterGroup::~ParameterGroup() {
  if (!ahead_) return;
  try {
    for (const Communication& communication : communications_) communication.shards->wait_for_async();
  } catch (const Error&) {  // a failed GPU writes no more
  }
}

void ParameterGroup::unshard(Runtime& runtime, Pass pass) {
  if (unsharded_) return;
  if (ahead_) {
    const bool wanted = *ahead_ == pass;
    for (const Communication& communication : communications_) communication.shards->wait_for_async();
    end_gather(runtime);
    if (!wanted) reshard();
  }
  if (!unsharded_) {
    begin_gather(runtime, pass, false);
    end_gather(runtime);
  }
  if (ParameterGroup* const next = pass == Pass::kForward ? next_forward_ : next_backward_)
    next->begin_ahead(runtime, pass);
}

void ParameterGroup::begin_gather(Runtime& runtime, Pass pass, bool async) {
  const Orientations wanted = usage(pass);
  for (Communication& communication : communications_) communication.gathers.clear();
  for (const auto& parameter : parameters_)
    parameter->begin_gather(runtime, wanted, communication_of(*parameter).gathers);
  const HostCounters::Waiting waiting(runtime.host);
  for (const Communication& communication : communications_)
    if (async)
      communication.shards->all_gather_async(communication.gathers, name_);
    else
      communication.shards->all_gather(communication.gathers, name_);
}

void ParameterGroup::end_gather(Runtime& runtime) {
  for (const auto& parameter : parameters_) parameter->end_gather(runtime);
  for (const auto& parameter : parameters_) parameter->make_columnwise(runtime);
  ahead_.reset();
  unsharded_ = true;
}

void ParameterGroup::begin_ahead(Runtime& runtime, Pass pass) {
  if (unsharded_ || ahead_) return;
  begin_gather(runtime, pass, true);
  ahead_ = pass;
}

void ParameterGroup::reshard() {
  if (!unsharded_) return;
  for (const auto& parameter : parameters_) parameter->reshard();
  unsharded_ = false;
}

void ParameterGroup::free_gathered() {
  for (const auto& parameter : parameters_) parameter->free_gathered();
  unsharded_ = false;
}

void ParameterGroup::reduce_gradients(Runtime& runtime) {
  for (Communication& communication : communications_) communication.scatters.clear();
  // As in FSDP2, gradients of the group are copied, padded and in the type of the reduction, before the first of them
  // is freed. FSDP2 copies all of them, also those that could be sent as they are.
  for (ShardedParameter* parameter : trained_) parameter->copy_gradient(runtime);
  for (ShardedParameter* parameter : trained_) parameter->free_copied_gradient();
  for (ShardedParameter* parameter : trained_) parameter->begin_reduce(runtime, communication_of(*parameter).scatters);
  for (const Communication& communication : communications_)
    communication.shards->reduce_scatter(communication.scatters, name_);
  if (ProcessGroup* replicas = mesh_.replica_group()) {
    reduce_parts_.clear();
    for (const ShardedParameter* parameter : trained_) reduce_parts_.push_back(parameter->reduced());
    replicas->all_reduce(ReduceOp::kSum, reduce_parts_, name_);
  }
  for (ShardedParameter* parameter : trained_) parameter->end_reduce(runtime, mesh_.world().size());
}

}  // namespace fp8lab
