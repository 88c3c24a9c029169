#include "harness/measure/gathered_gradients.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/over_ranks.h"

namespace fp8lab {
namespace {

/// Puts the elements that every shard of a replica has together. `all`: gradients of every rank, `most` values each;
/// `ranges`: whose they are, of every rank.
Lists unsharded(const std::vector<float>& all, std::size_t most, const std::vector<ElementRange>& ranges,
                const std::vector<Shape>& shapes, int shards, int first_rank) {
  Lists out;
  for (const Shape& shape : shapes) out.emplace_back(static_cast<std::size_t>(shape.numel()));
  for (int rank = first_rank; rank < first_rank + shards; ++rank) {
    auto from = all.begin() + static_cast<std::ptrdiff_t>(most) * rank;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const ElementRange& range = ranges[static_cast<std::size_t>(rank) * shapes.size() + i];
      std::copy_n(from, range.end - range.begin, out[i].begin() + range.begin);
      from += range.end - range.begin;
    }
  }
  return out;
}

}  // namespace

std::vector<Lists> gathered_gradients(ProcessGroup* world, const CellConfig& cell, const Lists& mine,
                                      const std::vector<ElementRange>& own, const std::vector<Shape>& shapes) {
  std::vector<float> values;
  for (const std::vector<float>& list : mine) values.insert(values.end(), list.begin(), list.end());
  const std::vector<std::size_t> sizes = of_all_ranks(world, std::vector{values.size()}, "sizes of gradients");
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  values.resize(most);
  const std::vector<float> all = of_all_ranks(world, values, "gradients");
  const std::vector<ElementRange> ranges = of_all_ranks(world, own, "elements of gradients");
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const ElementRange& range = ranges[rank * shapes.size() + i];
      elements += range.end - range.begin;
    }
    if (elements != static_cast<std::int64_t>(sizes[rank]))
      fail(fmt::format("gradients of rank {} have {} values for {} elements", rank, sizes[rank], elements));
  }
  const MeshText mesh = mesh_of(cell);
  std::vector<Lists> out;
  for (int replica = 0; replica < mesh.replicas; ++replica)
    out.push_back(unsharded(all, most, ranges, shapes, mesh.shards, replica * mesh.shards));
  return out;
}

}  // namespace fp8lab
