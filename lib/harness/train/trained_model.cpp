#include "harness/train/trained_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/check.h"
#include "fsdp/row_split.h"
#include "harness/cell/sharding_keys.h"
#include "harness/train/options.h"
#include "ops/quantize.h"
#include "optim/saved_state.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

constexpr double kAverageDecay = 0.9;

/// The values of all ranks of a group, each of which has the same number. Collective.
std::vector<float> of_all_parts(ProcessGroup& ranks, const std::vector<float>& own) {
  std::vector<float> all(own.size() * static_cast<std::size_t>(ranks.size()));
  std::vector<std::int64_t> offsets{0};
  for (int rank = 0; rank < ranks.size(); ++rank)
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(own.size() * sizeof(float)));
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(own.data()),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  ranks.all_gather({&part, 1}, "weights of all experts");
  return all;
}

}  // namespace

TrainedModel::TrainedModel(const CellConfig& cell, Runtime& runtime, const Recipe& recipe, ProcessGroup* ranks)
    : cell_(cell), runtime_(runtime), recipe_(recipe) {
  if (ranks != nullptr) {
    const MeshText shape = mesh_of(cell);
    mesh_ = std::make_unique<Mesh>(
        *ranks, MeshShape{.replicas = shape.replicas, .shards = shape.shards, .expert_parallel = cell.expert_parallel});
    runtime.expert_group = mesh_->expert_group();
  }
  build();
}

void TrainedModel::build() {
  const TrainingConfig& training = cell_.training;
  model_ = std::make_unique<Model>(runtime_, recipe_, model_options(cell_));
  if (is_sharded(cell_)) sharding_ = std::make_unique<Sharding>(runtime_, *model_, *mesh_, sharding_options(cell_));
  if (is_replicated(cell_)) replication_ = std::make_unique<Replication>(runtime_, *model_, mesh_->world());
  const AdamOptions options = adam_options(training, shards());
  const auto steps_of = [rate = learning_rate(training)](auto& optimizer) {
    return [&optimizer, rate](Runtime& runtime) {
      optimizer.set_learning_rate(rate.at(runtime.step));
      optimizer.step(runtime);
    };
  };
  if (training.optimizer == Optimizer::kAdam) {
    adam_ = std::make_unique<Adam>(model_->trained_parameters(), options);
    optimizer_step_ = steps_of(*adam_);
  } else if (training.optimizer == Optimizer::kForeachAdam) {
    foreach_adam_ = std::make_unique<ForeachAdam>(model_->trained_parameters(), options);
    optimizer_step_ = steps_of(*foreach_adam_);
  } else if (training.optimizer == Optimizer::kSgd) {
    sgd_ = std::make_unique<Sgd>(model_->trained_parameters(), sgd_options(training));
    optimizer_step_ = steps_of(*sgd_);
  }
  if (training.weight_average)
    average_ = std::make_unique<WeightAverage>(runtime_, model_->trained_parameters(), kAverageDecay);
}

void TrainedModel::reduce_gradients() {
  if (replication_) replication_->reduce_gradients(runtime_);
}

void TrainedModel::update() {
  if (optimizer_step_) optimizer_step_(runtime_);
  if (average_) average_->update(runtime_);
  model_->update_router_biases(runtime_, mesh_ ? &mesh_->world() : nullptr);
}

// Under HSDP all replicas have the same state. Each saves and loads its own copy, as a replica that resumes on other
// hosts would.
std::filesystem::path TrainedModel::folder_of_replica(const std::filesystem::path& folder) const {
  ProcessGroup* const replicas = mesh_ ? mesh_->replica_group() : nullptr;
  return folder / fmt::format("replica-{}", replicas != nullptr ? replicas->rank() : 0);
}

TrainingState TrainedModel::state() const {
  const Registry& registry = model_->registry();
  return {.parameters = model_->parameters(),
          .optimizer = adam_.get(),
          .forward_scales = registry.forward_scales,
          .backward_scales = registry.backward_scales,
          .router_biases = registry.router_biases,
          .step = runtime_.step};
}

void TrainedModel::save(const std::filesystem::path& folder) {
  if (runtime_.device.computes()) save_training_state(runtime_, folder_of_replica(folder), state(), shards());
}

void TrainedModel::restore(const std::filesystem::path& folder) {
  optimizer_step_ = {};
  adam_.reset();
  foreach_adam_.reset();
  sgd_.reset();
  sharding_.reset();
  replication_.reset();
  model_.reset();
  build();
  if (runtime_.device.computes())
    runtime_.step = load_training_state(runtime_, folder_of_replica(folder), state(), shards());
}

Traffic TrainedModel::traffic() const {
  Traffic total;
  const ProcessGroup* const of_experts = mesh_->expert_group() != nullptr ? &mesh_->expert_shard_group() : nullptr;
  for (const ProcessGroup* group : std::initializer_list<const ProcessGroup*>{
           &mesh_->world(), &mesh_->shard_group(), mesh_->replica_group(), mesh_->expert_group(), of_experts})
    for (std::size_t kind = 0; group != nullptr && kind < kCollectiveKinds; ++kind)
      total.add(static_cast<CollectiveKind>(kind), group->traffic().of(static_cast<CollectiveKind>(kind)));
  // Counts of choices travel over host memory (ops/experts/dispatch.h), which is another group if buffers are on a GPU.
  ProcessGroup* const experts = mesh_->expert_group();
  if (experts != nullptr && &experts->host() != experts)
    total.add(CollectiveKind::kAllGather, experts->host().traffic().of(CollectiveKind::kAllGather));
  return total;
}

std::vector<std::string> TrainedModel::warnings() const {
  return sharding_ ? sharding_->warnings() : std::vector<std::string>{};
}

void TrainedModel::visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass) {
  if (sharding_) sharding_->unshard(runtime_, pass);
  for (const Parameter* parameter : model_->parameters()) visit(*parameter);
  if (sharding_) sharding_->reshard();
}

std::vector<std::string> TrainedModel::parameter_names() const {
  std::vector<std::string> names;
  for (const Parameter* parameter : model_->parameters()) names.push_back(parameter->name);
  return names;
}

std::vector<ElementRange> TrainedModel::own_elements() const {
  std::vector<ElementRange> ranges;
  for (const Parameter* parameter : model_->parameters()) {
    const bool of_experts = parameter->part.parts > 1;
    const ProcessGroup* const shards = !mesh_       ? nullptr
                                       : of_experts ? &mesh_->expert_shard_group()
                                                    : &mesh_->shard_group();
    const RowSplit split(dim0(parameter->spec.shape), shards != nullptr ? shards->size() : 1);
    const int rank = shards != nullptr ? shards->rank() : 0;
    const std::int64_t row = row_elems(parameter->spec.shape), first = parameter->part.part * split.rows();
    ranges.push_back({.begin = (first + split.begin(rank)) * row, .end = (first + split.begin(rank + 1)) * row});
  }
  return ranges;
}

std::vector<std::vector<float>> TrainedModel::weights() {
  Device& device = runtime_.device;
  std::vector<std::vector<float>> values;
  const auto read = [&](const Parameter& parameter) {
    const bool eight_bits = !parameter.quantized.empty();
    values.push_back(device.read(eight_bits ? dequantize(device, parameter.quantized.rowwise_operand(), DType::kF32,
                                                         runtime_.workspace(parameter.name))
                                            : parameter.value));
  };
  visit_parameters(read, Pass::kForward);
  for (std::size_t i = 0; mesh_ && i < values.size(); ++i)
    if (model_->parameters()[i]->part.parts > 1) values[i] = of_all_parts(mesh_->expert_group()->host(), values[i]);
  return values;
}

void TrainedModel::write_weights(const std::vector<std::vector<float>>& values) {
  const std::vector<ElementRange> own = own_elements();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& shard = local_shard(*model_->parameters()[i]);
    check(!shard.in_eight_bits(), "write_weights: a weight is in eight bits");
    const std::vector<float> rows(values[i].begin() + own[i].begin, values[i].begin() + own[i].end);
    if (!rows.empty()) runtime_.device.write(shard.value, rows);
  }
}

std::vector<std::vector<float>> TrainedModel::averages() const {
  std::vector<std::vector<float>> values;
  std::size_t next = 0;
  for (std::size_t i = 0; average_ && i < model_->parameters().size(); ++i) {
    const Tensor& value = model_->parameters()[i]->frozen ? Tensor() : average_->value(next++);
    values.push_back(value ? runtime_.device.read(value) : std::vector<float>{});
  }
  return values;
}

std::map<std::string, std::vector<float>> TrainedModel::router_biases() const {
  std::map<std::string, std::vector<float>> values;
  for (const RouterBiases* biases : model_->registry().router_biases)
    values[biases->name()] = runtime_.device.read(biases->values());
  return values;
}

void TrainedModel::write_router_biases(const std::map<std::string, std::vector<float>>& values) {
  for (const RouterBiases* biases : model_->registry().router_biases)
    runtime_.device.write(biases->values(), values.at(biases->name()));
}

void TrainedModel::add_amaxes(const std::vector<RoleScales*>& scales,
                              std::map<std::string, std::vector<float>>& amaxes) const {
  Device& device = runtime_.device;
  for (const RoleScales* of : scales) {
    const DelayedScales& delayed = of->delayed().value();
    amaxes[device.ledger().holder(delayed.history().holder()).owner] = device.read(delayed.amaxes());
  }
}

std::map<std::string, std::vector<float>> TrainedModel::scales() const {
  Device& device = runtime_.device;
  std::map<std::string, std::vector<float>> out;
  const Registry& registry = model_->registry();
  for (const std::vector<RoleScales*>& scales : {registry.forward_scales, registry.backward_scales})
    for (const RoleScales* of : scales) {
      const DelayedScales& delayed = of->delayed().value();
      // Without the live row: there the optimizer has recorded the amaxes of the shards that it cast.
      std::vector<float> values = device.read(delayed.history());
      values.erase(values.begin(), values.begin() + delayed.tensors());
      std::ranges::copy(device.read(delayed.scales()), std::back_inserter(values));
      out[device.ledger().holder(delayed.history().holder()).owner] = std::move(values);
    }
  return out;
}

std::vector<std::vector<float>> TrainedModel::gradients() const {
  std::vector<std::vector<float>> values;
  for (const Parameter* parameter : model_->parameters()) {
    const Parameter& shard = local_shard(*parameter);
    if (parameter->frozen)
      values.emplace_back(static_cast<std::size_t>(shape_of(shard).numel()), 0.0F);
    else
      values.push_back(runtime_.device.read(shard.grad));
  }
  return values;
}

}  // namespace fp8lab
