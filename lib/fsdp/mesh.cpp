#include "fsdp/mesh.h"

#include <fmt/core.h>

#include <vector>

#include "core/check.h"

namespace fp8lab {

std::string mesh_error(const MeshShape& shape, int ranks) {
  if (shape.replicas < 1 || shape.shards < 1)
    return fmt::format("a mesh of {} x {} (replicas x shards): both must be at least 1", shape.replicas, shape.shards);
  if (shape.expert_parallel < 1 || shape.shards % shape.expert_parallel != 0)
    return fmt::format("{} ranks are to have a layer's experts between them; that divides the {} shards",
                       shape.expert_parallel, shape.shards);
  if (static_cast<std::int64_t>(shape.replicas) * shape.shards == ranks) return {};
  return fmt::format("a mesh of {} x {} (replicas x shards) has {} places, but there are {} ranks", shape.replicas,
                     shape.shards, static_cast<std::int64_t>(shape.replicas) * shape.shards, ranks);
}

Mesh::Mesh(ProcessGroup& world, const MeshShape& shape) : shape_(shape), world_(world) {
  if (const std::string broken = mesh_error(shape, world.size()); !broken.empty()) fail(broken);
  const auto places = [&](auto color_of) {
    std::vector<SplitPlace> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back({.color = color_of(rank), .key = rank});
    return all;
  };
  shard_group_ = world.split(places([&](int rank) { return rank / shape.shards; }), "shards");
  if (shape.replicas > 1)
    replica_group_ = world.split(places([&](int rank) { return rank % shape.shards; }), "replicas");
  const int parts = shape.expert_parallel;
  if (parts == 1) return;
  expert_group_ = world.split(places([&](int rank) { return rank / parts; }), "experts");
  // By the first rank of the replica, and the part.
  expert_shard_group_ =
      world.split(places([&](int rank) { return rank - rank % shape.shards + rank % parts; }), "shards of experts");
}

}  // namespace fp8lab
