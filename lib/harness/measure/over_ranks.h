#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/process_group.h"

// What every rank learns about all ranks. All of these are collective. If nothing is sharded, `world` is null, and
// there is one rank.
namespace fp8lab {

/// Gathers `mine` of every rank, in the order of ranks.
template <class T>
std::vector<T> of_all_ranks(ProcessGroup* world, const std::vector<T>& mine, std::string_view label) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (world == nullptr) return mine;
  const auto bytes = static_cast<std::int64_t>(mine.size() * sizeof(T));
  std::vector<std::int64_t> offsets;
  for (std::int64_t rank = 0; rank <= world->size(); ++rank) offsets.push_back(rank * bytes);
  std::vector<T> all(mine.size() * static_cast<std::size_t>(world->size()));
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(mine.data()),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  world->all_gather({&part, 1}, label);
  return all;
}

inline bool on_all_ranks(ProcessGroup* world, bool holds, std::string_view label) {
  const std::vector<int> all = of_all_ranks(world, std::vector<int>{holds}, label);
  return std::all_of(all.begin(), all.end(), [](int one) { return one != 0; });
}

}  // namespace fp8lab
