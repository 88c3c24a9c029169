#pragma once

#include <optional>
#include <string>

#include "harness/cell/cell.h"

// What the keys `ranks`, `mesh`, `sharding` and `training.deferred_init` come to: some may be left out.
namespace fp8lab {

/// Ranks as a grid: rank = replica * shards + shard. Every replica holds the entire model, split over its shards.
struct MeshText {
  int replicas = 1;
  int shards = 1;
};

/// "4" is four shards, "2x4" two replicas of four shards each. Nothing for any other text.
std::optional<MeshText> parse_mesh(const std::string& text);

/// `mesh`, or all ranks as shards of one replica where it is left out.
MeshText mesh_of(const CellConfig& cell);
/// `sharding`, or fsdp for a cell that has several ranks or gives a mesh.
bool is_sharded(const CellConfig& cell);
/// `training.deferred_init`, or what `is_sharded` says.
bool defers_init(const CellConfig& cell);

}  // namespace fp8lab
