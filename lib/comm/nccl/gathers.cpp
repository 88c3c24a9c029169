#include "comm/nccl/gathers.h"

#include <fmt/core.h>

#include <algorithm>

#include "comm/nccl/calls.h"
#include "comm/nccl/nccl_library.h"

namespace fp8lab::nccl {
namespace {

/// In a signature, for a place that each rank has its own of.
constexpr std::uint64_t kInPlace = 1;

bool is_even(std::span<const std::int64_t> offsets) {
  for (std::size_t i = 2; i < offsets.size(); ++i)
    if (offsets[i] - offsets[i - 1] != offsets[1]) return false;
  return true;
}

}  // namespace

bool Gathers::goes(Way way) const { return std::find(ways_.begin(), ways_.end(), way) != ways_.end(); }

/// So that a gather costs no text once each was noted.
void Gathers::note_ways() {
  constexpr std::array<const char*, kWays> kNames = {"by NCCL's kernels", "by NCCL's copy engines", "pulled from the others' windows"};
  for (std::size_t way = 0; way < kNames.size(); ++way)
    if (!noted_[way] && goes(static_cast<Way>(way))) {
      noted_[way] = true;
      card_.note(fmt::format("all-gathers over NCCL: {}", kNames[way]));
    }
}

bool Gathers::is_in_place(const GatherPart& part) const {
  return part.from == part.to + part.offsets_bytes[static_cast<std::size_t>(options_.rank)];
}

void Gathers::choose(std::span<const GatherPart> parts, Signature& placed) {
  ways_.clear();
  std::array<std::int64_t, kWays> bytes{};
  for (const GatherPart& part : parts) {
    const bool even = is_even(part.offsets_bytes) && part.offsets_bytes.back() > 0;
    const std::uint64_t to = even ? windows_.place_of(part.to) : 0;
    const std::uint64_t from = to == 0 ? 0 : is_in_place(part) ? kInPlace : windows_.place_of(part.from);
    placed.mix(from == 0 ? 0 : to);
    placed.mix(from);
    ways_.push_back(from == 0              ? Way::kKernels
                    : from == kInPlace     ? Way::kEngines
                    : windows_.reach_all() ? Way::kPulls
                                           : Way::kKernels);
    bytes[static_cast<std::size_t>(ways_.back())] += part.offsets_bytes.back();
  }
  // A rank pulls from each of the others by itself.
  const std::int64_t pulled_per_rank = bytes[static_cast<std::size_t>(Way::kPulls)] / std::max(1, options_.ranks - 1);
  if (pulled_per_rank < options_.engines_from_bytes) std::replace(ways_.begin(), ways_.end(), Way::kPulls, Way::kKernels);
  if (bytes[static_cast<std::size_t>(Way::kEngines)] < options_.engines_from_bytes)
    std::replace(ways_.begin(), ways_.end(), Way::kEngines, Way::kKernels);
}

void Gathers::launch(const Signature& call, std::span<const GatherPart> parts, const Windows::Communicators& over,
                     const Lane& lane) {
  note_ways();
  const auto& [plain, engines] = over;
  const cudaStream_t stream = lane.stream;
  if (goes(Way::kPulls)) pull(parts, lane);
  if (goes(Way::kEngines)) {
    gather(*engines, Way::kEngines, parts, stream);
    engines->watch(call, stream);
  }
  if (goes(Way::kKernels)) gather(*plain, Way::kKernels, parts, stream);
  if (goes(Way::kPulls) || goes(Way::kKernels)) plain->watch(call, stream);
}

void Gathers::pull(std::span<const GatherPart> parts, const Lane& lane) {
  copies_.clear();
  // Everybody starts behind itself, so that not all pull from one, and ends with what is its own.
  for (int step = 1; step <= options_.ranks; ++step) {
    const int source = (options_.rank + step) % options_.ranks;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (ways_[i] != Way::kPulls) continue;
      const GatherPart& part = parts[i];
      copies_.push_back({.from = source == options_.rank ? part.from : windows_.of_rank(source, part.from),
                         .to = part.to + part.offsets_bytes[static_cast<std::size_t>(source)],
                         .bytes = part.offsets_bytes[1]});
    }
  }
  const std::span<const PeerCopy> all(copies_);
  const auto own = static_cast<std::size_t>(std::count(ways_.begin(), ways_.end(), Way::kPulls));
  // Nobody reads before it is there, nor goes on while it is read.
  windows_.meet(lane.stream, lane.aside);
  pulls_.launch(all.first(all.size() - own), all.last(own), PeerCopyPath::kBySize, lane.stream);
  windows_.meet(lane.stream, lane.aside);
}

void Gathers::gather(Communicator& over, Way way, std::span<const GatherPart> parts, cudaStream_t stream) {
  copies_.clear();
  Launch launch;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (ways_[i] != way) continue;
    if (is_even(parts[i].offsets_bytes))
      gather_evenly(over, parts[i], stream);
    else
      gather_piecewise(over, parts[i], stream);
  }
  launch.go();
  cuda::launch_copies(copies_, PeerCopyPath::kBySize, stream);
}

void Gathers::gather_evenly(Communicator& over, const GatherPart& part, cudaStream_t stream) const {
  if (const std::int64_t each = part.offsets_bytes[1]; each > 0)
    nccl_check(api().all_gather(part.from, part.to, static_cast<std::size_t>(each), ncclUint8, over.get(), stream),
               "ncclAllGather");
}

void Gathers::gather_piecewise(Communicator& over, const GatherPart& part, cudaStream_t stream) {
  const auto place = [&](int rank) { return part.offsets_bytes[static_cast<std::size_t>(rank)]; };
  const int own_rank = options_.rank;
  const std::int64_t own = place(own_rank + 1) - place(own_rank);
  for (int other = 0; other < options_.ranks; ++other) {
    if (other == own_rank) continue;
    send(over, part.from, own, other, stream);
    receive(over, part.to + place(other), place(other + 1) - place(other), other, stream);
  }
  copies_.push_back({.from = part.from, .to = part.to + place(own_rank), .bytes = own});
}

}  // namespace fp8lab::nccl
