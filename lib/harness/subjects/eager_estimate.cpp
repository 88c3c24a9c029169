#include "harness/subjects/eager_estimate.h"

#include <algorithm>
#include <functional>

#include "harness/cell/sharding_keys.h"

namespace fp8lab {

Estimate estimate_of(const eager::Memory& memory, const CellConfig& cell) {
  Estimate out;
  for (const auto& [name, bytes] : memory.figures) out.figures[name] = static_cast<double>(bytes);
  if (is_sharded(cell))
    out.moved = {.received = static_cast<double>(memory.received), .sent = static_cast<double>(memory.sent)};
  out.peak_phase = eager::kPhaseNames[static_cast<std::size_t>(memory.peak_phase)];
  for (std::size_t i = 0; i < eager::kOwnerNames.size(); ++i)
    if (memory.at_peak[i] > 0) out.peak_by_owner.emplace_back(eager::kOwnerNames[i], memory.at_peak[i]);
  std::ranges::stable_sort(out.peak_by_owner, std::greater<>(), [](const auto& entry) { return entry.second; });
  return out;
}

}  // namespace fp8lab
