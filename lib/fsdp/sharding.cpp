#include "fsdp/sharding.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

/// Added after a layer's output, so backward runs it before the layer.
class PreBackwardNode final : public Node {
 public:
  PreBackwardNode(Runtime& runtime, ParameterGroup& group, std::shared_ptr<Node> input)
      : Node(runtime, group.name() + ".pre_backward", {std::move(input)}), group_(group) {}
  std::vector<Tensor> backward(Tensor grad) override {
    group_.unshard(runtime(), Pass::kBackward);
    return {std::move(grad)};
  }

 private:
  ParameterGroup& group_;
};

/// Added before a layer's input, so backward runs it after the layer.
class PostBackwardNode final : public Node {
 public:
  PostBackwardNode(Runtime& runtime, ParameterGroup& group, std::shared_ptr<Node> input)
      : Node(runtime, group.name() + ".post_backward", {std::move(input)}), group_(group) {}
  std::vector<Tensor> backward(Tensor grad) override {
    group_.free_gathered();
    group_.reduce_gradients(runtime());
    return {std::move(grad)};
  }

 private:
  ParameterGroup& group_;
};

/// A layer, or the root: as in FSDP2, the root's parameters are gathered before everything else and stay so until
/// backward has ended.
class ShardedModule final : public Module {
 public:
  ShardedModule(std::unique_ptr<Module> module, ParameterGroup& group) : module_(std::move(module)), group_(group) {}

  Variable forward(Runtime& runtime, const Variable& x) override {
    {
      const HostCounters::PreForward measured(runtime.host);
      group_.unshard(runtime, Pass::kForward);
    }
    const auto after = std::make_shared<PostBackwardNode>(runtime, group_, x.producer);
    Variable y = module_->forward(runtime, {x.value, after});
    if (!runtime.differentiates())
      group_.reshard();  // no backward will do it
    else if (group_.reshards_after_forward())
      group_.free_gathered();
    return {std::move(y.value), std::make_shared<PreBackwardNode>(runtime, group_, y.producer)};
  }

 private:
  std::unique_ptr<Module> module_;
  ParameterGroup& group_;
};

}  // namespace

Sharding::Sharding(Runtime& runtime, Model& model, Mesh& mesh, const ShardingOptions& options)
    : mesh_(mesh), gather_memory_(runtime.device.memory(), mesh.shard_group()) {
  if (mesh.world().moves_data() != runtime.device.computes())
    fail(fmt::format("sharding: device '{}' {} bytes, but the ranks' group {} them", runtime.device.name(),
                     runtime.device.computes() ? "holds" : "holds no",
                     mesh.world().moves_data() ? "moves" : "does not move"));
  check(runtime.device.peer_access() == nullptr || mesh.world().device() == &runtime.device,
        "sharding: the mesh needs ranks whose buffers lie on this device: ProcessGroup::for_device()");
  // The root keeps its gathered parameters.
  states_.push_back({.path = "", .reshard_after_forward = false});
  const std::vector<std::string> layers = model.layer_names();
  for (const std::string& path : layers)
    states_.push_back({.path = path, .reshard_after_forward = options.reshard_after_forward});
  model.wrap_modules(
      [&](std::unique_ptr<Module> module, const std::string& name, std::span<Parameter* const> parameters) {
        groups_.push_back(std::make_unique<ParameterGroup>(
            runtime, name, parameters, mesh, states_,
            GroupOptions{.recomputes = model.recomputes(name), .reduce_dtype = options.reduce_dtype}));
        for (std::string& warning : groups_.back()->warnings()) warnings_.push_back(std::move(warning));
        return std::make_unique<ShardedModule>(std::move(module), *groups_.back());
      });
  for (std::size_t i = 0; options.gather_ahead && i < layers.size(); ++i)
    groups_[i]->gather_ahead(i + 1 < layers.size() ? groups_[i + 1].get() : nullptr,
                             i > model.frozen_layers() ? groups_[i - 1].get() : nullptr);
}

Sharding::~Sharding() = default;

void Sharding::unshard(Runtime& runtime, Pass pass) {
  for (const auto& group : groups_) group->unshard(runtime, pass);
}

void Sharding::reshard() {
  for (const auto& group : groups_) group->reshard();
}

}  // namespace fp8lab
