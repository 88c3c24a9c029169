#pragma once

#include <memory>
#include <string>

#include "comm/process_group.h"

namespace fp8lab {

/// Layout of the ranks: FSDP is one row of shards, HSDP several replicas of it. Rank = replica * shards + shard.
///
/// Expert parallelism takes its ranks from those that shard, as in Megatron and torchtitan: `expert_parallel`
/// neighbours have the experts of a layer once between them, shard = expert_shard * expert_parallel + part, and the
/// shards / expert_parallel ranks with one part shard these experts. Every other parameter is sharded over all shards.
/// Each rank has tokens of its own, so that a gradient is a mean over all ranks, of experts too.
struct MeshShape {
  int replicas = 1;
  int shards = 1;
  int expert_parallel = 1;  ///< divides `shards`

  int ranks() const { return replicas * shards; }
};

/// Why the mesh does not fit `ranks` ranks; empty if it fits.
std::string mesh_error(const MeshShape& shape, int ranks);

/// One rank's process groups. `world` must outlive it. If parameters lie in a GPU's memory, `world` must be a group
/// that ProcessGroup::for_device() made.
class Mesh {
 public:
  /// Throws Error if the mesh does not fit. A collective: every rank of `world` makes a mesh.
  Mesh(ProcessGroup& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  ProcessGroup& world() { return world_; }
  /// The ranks that together hold one copy of every parameter.
  ProcessGroup& shard_group() { return *shard_group_; }
  /// The ranks that hold the same shards; null if there is one replica.
  ProcessGroup* replica_group() { return replica_group_.get(); }
  /// The ranks that have all experts between them, ordered by part; null without expert parallelism.
  ProcessGroup* expert_group() { return expert_group_.get(); }
  /// The ranks that together hold the experts of this rank's part; shard_group() without expert parallelism.
  ProcessGroup& expert_shard_group() { return expert_shard_group_ ? *expert_shard_group_ : *shard_group_; }

 private:
  MeshShape shape_;
  ProcessGroup& world_;
  std::unique_ptr<ProcessGroup> shard_group_;
  std::unique_ptr<ProcessGroup> replica_group_;
  std::unique_ptr<ProcessGroup> expert_group_;
  std::unique_ptr<ProcessGroup> expert_shard_group_;
};

}  // namespace fp8lab
