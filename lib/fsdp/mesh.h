#pragma once

#include <memory>
#include <string>

#include "comm/process_group.h"

namespace fp8lab {

/// Layout of the ranks: FSDP is one row of shards, HSDP several replicas of it. Rank = replica * shards + shard.
struct MeshShape {
  int replicas = 1;
  int shards = 1;

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

 private:
  MeshShape shape_;
  ProcessGroup& world_;
  std::unique_ptr<ProcessGroup> shard_group_;
  std::unique_ptr<ProcessGroup> replica_group_;
};

}  // namespace fp8lab
