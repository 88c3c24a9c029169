#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/process_group.h"

namespace fp8lab {

/// One rank's share of the work in an all-reduce.
struct Slice {
  std::int64_t first = 0;
  std::int64_t elems = 0;
};

/// The slice of `part`, the `index`-th of its collective, that `rank` of `ranks` reduces. Slices are multiples of a
/// cache line, so only one rank reduces a small tensor; `index` decides which, so that many small tensors are
/// spread over the ranks.
inline Slice slice_of(const ReducePart& part, std::size_t index, int rank, int ranks) {
  constexpr std::int64_t kLineBytes = 64;
  const std::int64_t line = kLineBytes / static_cast<std::int64_t>(size_bytes(part.dtype));
  const std::int64_t lines = (part.elems + line - 1) / line;
  const std::int64_t lines_each = (lines + ranks - 1) / ranks;
  const auto place =
      static_cast<std::int64_t>((static_cast<std::size_t>(rank) + index) % static_cast<std::size_t>(ranks));
  const std::int64_t first = std::min(part.elems, place * lines_each * line);
  return {.first = first, .elems = std::min(part.elems - first, lines_each * line)};
}

}  // namespace fp8lab
