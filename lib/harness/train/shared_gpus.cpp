#include "harness/train/shared_gpus.h"

#include <fmt/format.h>

#include <functional>
#include <set>

#include "backend/device.h"
#include "comm/process_group.h"

namespace fp8lab {

std::vector<std::string> shared_gpus(Device& device, ProcessGroup& world) {
  const PeerAccess* const memory = device.peer_access();
  if (memory == nullptr) return {};
  const std::uint64_t own = std::hash<std::string>()(memory->gpu());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  std::vector<std::int64_t> offsets(all.size() + 1);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i * sizeof own);
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  world.all_gather({&part, 1}, "GPUs");
  const std::size_t gpus = std::set<std::uint64_t>(all.begin(), all.end()).size();
  if (gpus == all.size()) return {};
  return {fmt::format("{} ranks on {} GPU{}", all.size(), gpus, gpus == 1 ? "" : "s")};
}

}  // namespace fp8lab
