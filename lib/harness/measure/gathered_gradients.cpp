#include "harness/measure/gathered_gradients.h"

#include <algorithm>

#include "fsdp/row_split.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/over_ranks.h"

namespace fp8lab {
namespace {

/// Puts the rows that every shard of a replica has together. `all`: gradients of every rank, `most` values each.
Lists unsharded(const std::vector<float>& all, std::size_t most, const std::vector<Shape>& shapes, int shards,
                int first_rank) {
  Lists out;
  for (const Shape& shape : shapes) out.emplace_back(static_cast<std::size_t>(dim0(shape) * row_elems(shape)));
  for (int shard = 0; shard < shards; ++shard) {
    auto from = all.begin() + static_cast<std::ptrdiff_t>(most) * (first_rank + shard);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const RowSplit split(dim0(shapes[i]), shards);
      const std::int64_t row = row_elems(shapes[i]), count = split.count(shard) * row;
      std::copy_n(from, count, out[i].begin() + split.begin(shard) * row);
      from += count;
    }
  }
  return out;
}

}  // namespace

std::vector<Lists> gathered_gradients(ProcessGroup* world, const CellConfig& cell, const Lists& mine,
                                      const std::vector<Shape>& shapes) {
  std::vector<float> values;
  for (const std::vector<float>& list : mine) values.insert(values.end(), list.begin(), list.end());
  const std::vector<std::size_t> sizes = of_all_ranks(world, std::vector{values.size()}, "sizes of gradients");
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  values.resize(most);
  const std::vector<float> all = of_all_ranks(world, values, "gradients");
  const MeshText mesh = mesh_of(cell);
  std::vector<Lists> out;
  for (int replica = 0; replica < mesh.replicas; ++replica)
    out.push_back(unsharded(all, most, shapes, mesh.shards, replica * mesh.shards));
  return out;
}

}  // namespace fp8lab
