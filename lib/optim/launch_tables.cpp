#include "optim/launch_tables.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/shape.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kBlockElems = 65536;
constexpr std::int64_t kBlocksPerTable = 320;
constexpr std::size_t kHandles = 20'321;

std::size_t tensors_per_table(ListDepth depth) {
  switch (depth) {
    case ListDepth::kOne: return 110;
    case ListDepth::kFour: return 36;
    case ListDepth::kFive: return 30;
  }
  return 0;
}

}  // namespace

std::size_t launched_tensors(std::span<const std::int64_t> elems, ListDepth depth) {
  const std::size_t most_tensors = tensors_per_table(depth);
  std::size_t launched = 0, tensors = 0;
  std::int64_t blocks = 0;  // in the present table, as `tensors`
  for (std::size_t i = 0; i < elems.size(); ++i) {
    if (++tensors > most_tensors)
      fail(fmt::format(
          "launch of a list of tensors: its table of {} overflows, since nothing is launched after a tensor "
          "without elements; leave such tensors out",
          most_tensors));
    for (std::int64_t left = ceil_div(elems[i], kBlockElems); left > 0;) {
      const std::int64_t added = std::min(left, kBlocksPerTable - blocks);
      blocks += added;
      left -= added;
      const bool full = blocks == kBlocksPerTable || (left == 0 && tensors == most_tensors);
      if (!full && !(left == 0 && i + 1 == elems.size())) continue;
      launched = left == 0 ? i + 1 : i;
      tensors = left == 0 ? 0 : 1;  // the rest of a tensor is first in the next table
      blocks = 0;
    }
  }
  return launched;
}

void check_handles(std::size_t tensors, std::size_t lists) {
  const std::size_t handles = tensors * lists + 1;
  if (handles > kHandles)
    fail(fmt::format(
        "launch of a list of tensors: {} tensors in {} lists take {} handles in one call, and there are {}; divide the "
        "lists among calls",
        tensors, lists, handles, kHandles));
}

bool fits_32_bits(std::int64_t elems) { return elems <= std::numeric_limits<std::int32_t>::max(); }

}  // namespace fp8lab
