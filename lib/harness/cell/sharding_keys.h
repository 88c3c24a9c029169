#pragma once

#include <optional>
#include <string>

#include "harness/cell/cell.h"

// The keys `ranks`, `context_parallel`, `mesh`, `sharding` and `training.deferred_init` with their defaults filled in.
namespace fp8lab {

/// Ranks as a grid: rank = replica * shards + shard. Every replica holds the entire model, split over its shards.
struct MeshText {
  int replicas = 1;
  int shards = 1;
};

/// "4" is four shards, "2x4" is two replicas of four shards each. Nothing for any other text.
std::optional<MeshText> parse_mesh(const std::string& text);

/// The value of `mesh`; left out: all ranks as shards of one replica. Under `sharding: ddp` every rank is a replica.
MeshText mesh_of(const CellConfig& cell);
/// The value of `sharding`; left out: fsdp for a cell with several ranks or a mesh.
bool is_sharded(const CellConfig& cell);
/// True under `sharding: ddp`: every rank has all parameters, and gradients are averaged in buckets.
bool is_replicated(const CellConfig& cell);
/// True if a process group trains the cell, of one rank or several: it is sharded or replicated.
bool has_ranks(const CellConfig& cell);
/// How many ranks, or groups of ranks that split sequences between them, read sequences of their own.
int data_parallel_ranks(const CellConfig& cell);
/// Tokens of a sequence that a rank computes.
std::int64_t seq_of_rank(const CellConfig& cell);
/// The value of `training.deferred_init`; left out: is_sharded().
bool defers_init(const CellConfig& cell);

}  // namespace fp8lab
