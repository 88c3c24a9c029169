#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/mesh.h"
#include "fsdp/parameter_group.h"
#include "fsdp/state.h"
#include "nn/model.h"

namespace fp8lab {

struct ShardingOptions {
  /// A layer's unsharded parameters are freed after its forward and gathered again for its backward.
  bool reshard_after_forward = true;
  /// Each layer's parameters are gathered while the layer before it computes, in either pass. One more layer's
  /// unsharded parameters are alive then.
  bool gather_ahead = false;
  /// Layers that run their forward again in backward need both orientations of their weights there.
  bool checkpoint_layers = false;
};

/// While it lives, memory for what ranks gather comes from where `shards` gathers fastest. A collective of those ranks;
/// `memory` outlives it.
class GatherMemory {
 public:
  GatherMemory(Memory& memory, ProcessGroup& shards) : memory_(memory) {
    std::unique_ptr<SegmentSource> source = shards.gather_source();
    source_ = source.get();
    if (source_ != nullptr) memory.gather_from(std::move(source));
  }
  ~GatherMemory() {
    if (source_ != nullptr && memory_.allocator().gather_source() == source_) memory_.gather_from(nullptr);
  }
  GatherMemory(const GatherMemory&) = delete;
  GatherMemory& operator=(const GatherMemory&) = delete;

 private:
  Memory& memory_;
  const SegmentSource* source_;  ///< null: any memory will do
};

/// Shards a model over a mesh, layer by layer: each layer is a group whose parameters travel in one collective. Before
/// a layer's forward, and before its backward, its parameters are gathered; after its backward their gradients are
/// reduced to the shards, averaged over all ranks, and the unsharded parameters go. A model built with deferred
/// initialisation gets its initial values here, each rank its own rows; otherwise shards are cut out of what is there.
/// Owns the shards (Parameter::local); must outlive the model's use.
class Sharding {
 public:
  Sharding(Runtime& runtime, Model& model, Mesh& mesh, const ShardingOptions& options);
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  Mesh& mesh() { return mesh_; }
  /// Weights that their format refuses to cut, and why.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Gathers every parameter, as for this pass; for reading what ranks hold. Counts as traffic.
  void unshard(Runtime& runtime, Pass pass = Pass::kForward);
  void reshard();

 private:
  Mesh& mesh_;
  GatherMemory gather_memory_;  ///< goes after the shards
  std::vector<ShardingState> states_;
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::vector<std::string> warnings_;
};

}  // namespace fp8lab
