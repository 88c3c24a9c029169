#include "comm/gather_source.h"

#include <fmt/core.h>

#include <cstdint>

namespace fp8lab {

// The label contains the size, so that ranks which request different sizes are reported.
bool GatherSource::all_have(ProcessGroup& host, bool has, std::size_t bytes) {
  std::int32_t lacking = has ? 0 : 1;
  const ReducePart part{.data = reinterpret_cast<std::byte*>(&lacking), .elems = 1, .dtype = DType::kI32};
  host.all_reduce(ReduceOp::kMax, {&part, 1}, fmt::format("{} bytes to gather in", bytes));
  return lacking == 0;
}

std::byte* GatherSource::reserve(std::size_t bytes) {
  std::byte* const segment = take(bytes);
  ProcessGroup* const group = host();
  if (group == nullptr) return segment;
  try {
    const bool reserved = all_have(*group, segment != nullptr, bytes);
    if (reserved) {
      share(segment, bytes);
      return segment;
    }
  } catch (...) {
    give_up();
    if (segment != nullptr) release(segment, bytes);
    throw;
  }
  if (segment != nullptr) release(segment, bytes);
  return nullptr;
}

void GatherSource::decline(std::size_t bytes) {
  if (ProcessGroup* const group = host()) all_have(*group, false, bytes);
}

void GatherSource::settle() {
  if (ProcessGroup* const group = host()) group->barrier("memory to gather in is given back");
}

}  // namespace fp8lab
