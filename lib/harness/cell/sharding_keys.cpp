#include "harness/cell/sharding_keys.h"

#include "harness/cell/keys.h"

namespace fp8lab {
namespace {

std::optional<int> count(const std::string& text) {
  const auto value = integer(text);
  if (!value || *value < 1 || *value > kMostRanks) return std::nullopt;
  return static_cast<int>(*value);
}

}  // namespace

std::optional<MeshText> parse_mesh(const std::string& text) {
  const auto cross = text.find('x');
  const auto replicas = cross == std::string::npos ? 1 : count(text.substr(0, cross));
  const auto shards = count(cross == std::string::npos ? text : text.substr(cross + 1));
  if (!replicas || !shards) return std::nullopt;
  return MeshText{*replicas, *shards};
}

MeshText mesh_of(const CellConfig& cell) {
  if (is_replicated(cell)) return {.replicas = cell.ranks, .shards = 1};
  return parse_mesh(cell.mesh).value_or(MeshText{.replicas = 1, .shards = cell.ranks});
}

bool is_sharded(const CellConfig& cell) {
  return cell.sharding.value_or(cell.ranks > 1 || !cell.mesh.empty() ? Sharded::kFsdp : Sharded::kNone) ==
         Sharded::kFsdp;
}

bool is_replicated(const CellConfig& cell) { return cell.sharding == Sharded::kDdp; }

bool has_ranks(const CellConfig& cell) { return is_sharded(cell) || is_replicated(cell); }

int data_parallel_ranks(const CellConfig& cell) { return has_ranks(cell) ? cell.ranks / cell.context_parallel : 1; }

std::int64_t seq_of_rank(const CellConfig& cell) { return cell.model.seq / cell.context_parallel; }

bool defers_init(const CellConfig& cell) { return cell.training.deferred_init.value_or(is_sharded(cell)); }

}  // namespace fp8lab
