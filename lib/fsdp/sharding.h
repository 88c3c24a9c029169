#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/mesh.h"
#include "fsdp/parameter_group.h"
#include "fsdp/state.h"
#include "nn/model.h"

namespace fp8lab {

struct ShardingOptions {
  /// Unsharded parameters are freed after their layer's forward and gathered again for its backward.
  bool reshard_after_forward = true;
  /// Each layer's parameters are gathered while the previous layer computes, in either pass. One more layer's unsharded
  /// parameters are then alive.
  bool gather_ahead = false;
  /// The type in which gradients are added up over ranks and averaged (FSDP2's MixedPrecisionPolicy::reduce_dtype), f32
  /// or bf16. The result is rounded to the parameter's type once. Left out: the parameter's type.
  std::optional<DType> reduce_dtype{};
};

/// For its lifetime, Pool::kGathered of `memory` gets its segments from the gather source of `shards`, where
/// all-gathers are fastest. A collective of those ranks; `memory` must outlive it.
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
  const SegmentSource* source_;  ///< null: any memory is as good
};

/// Shards a model over a mesh, layer by layer: each layer is a group whose parameters are communicated in one
/// collective. Before a layer's forward, and before its backward, its parameters are gathered. After its backward the
/// gradients are reduced to the shards, averaged over all ranks, and the unsharded parameters are freed. The parameters
/// of a language model's embedding and head are the root's group: gathered once, before the first layer's, and freed
/// after the last layer's backward. Forward without gradients frees what it gathered. A model built
/// with deferred initialisation gets its initial values here, each rank its own rows; otherwise shards are cut out of
/// the existing values. Owns the shards (Parameter::local), so it must outlive the model's use.
class Sharding {
 public:
  Sharding(Runtime& runtime, Model& model, Mesh& mesh, const ShardingOptions& options);
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  Mesh& mesh() { return mesh_; }
  /// Weights whose format refuses the shards, and why.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Gathers all parameters as for `pass`, to read values that ranks hold. Counts as traffic.
  void unshard(Runtime& runtime, Pass pass = Pass::kForward);
  void reshard();

 private:
  Mesh& mesh_;
  GatherMemory gather_memory_;  ///< destroyed after the shards
  std::vector<ShardingState> states_;
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::vector<std::string> warnings_;
};

}  // namespace fp8lab
