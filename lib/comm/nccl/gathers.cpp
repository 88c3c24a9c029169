#include "comm/nccl/gathers.h"

#include <fmt/core.h>

#include <algorithm>

#include "comm/gather_writes.h"

namespace fp8lab::nccl {
namespace {

/// Marks, in a signature, a part that is gathered in place, whose source address differs from rank to rank.
constexpr std::uint64_t kInPlace = 1;

bool is_even(std::span<const std::int64_t> offsets) {
  for (std::size_t i = 2; i < offsets.size(); ++i)
    if (offsets[i] - offsets[i - 1] != offsets[1]) return false;
  return true;
}

}  // namespace

bool Gathers::uses(Path path) const { return std::find(paths_.begin(), paths_.end(), path) != paths_.end(); }

/// Records each path once, so that later gathers need not format its text.
void Gathers::record_paths() {
  constexpr std::array<const char*, kPathCount> kNames = {"by NCCL's kernels", "written to the others' windows"};
  for (std::size_t path = 0; path < kNames.size(); ++path)
    if (!recorded_[path] && uses(static_cast<Path>(path))) {
      recorded_[path] = true;
      gpu_.note(fmt::format("all-gathers over NCCL: {}", kNames[path]));
    }
}

bool Gathers::is_in_place(const GatherPart& part) const {
  return part.from == part.to + part.offsets_bytes[static_cast<std::size_t>(options_.rank)];
}

void Gathers::choose(std::span<const GatherPart> parts, Signature& placed) {
  paths_.clear();
  std::int64_t written = 0;
  for (const GatherPart& part : parts) {
    const bool even = is_even(part.offsets_bytes) && part.offsets_bytes.back() > 0;
    const std::uint64_t to = even ? windows_.place_of(part.to) : 0;
    const std::uint64_t from = to == 0 ? 0 : is_in_place(part) ? kInPlace : windows_.place_of(part.from);
    placed.mix(from == 0 ? 0 : to);
    placed.mix(from);
    paths_.push_back(from != 0 && windows_.reach_all() ? Path::kWrites : Path::kKernels);
    if (paths_.back() == Path::kWrites) written += part.offsets_bytes.back();
  }
  if (written < options_.writes_from_bytes) std::fill(paths_.begin(), paths_.end(), Path::kKernels);
}

void Gathers::launch(const Signature& call, std::span<const GatherPart> parts, Communicator& over,
                     const cuda::CollectiveStream& over_stream) {
  record_paths();
  if (uses(Path::kWrites)) write(parts, over_stream);
  if (uses(Path::kKernels)) gather(over, parts, over_stream.stream);
  over.watch(call, over_stream.stream);
}

void Gathers::write(std::span<const GatherPart> parts, const cuda::CollectiveStream& over_stream) {
  copies_.clear();
  const std::size_t own = add_gather_writes(
      parts, options_.rank, options_.ranks,
      [&](int target, std::size_t i) -> std::byte* {
        if (paths_[i] != Path::kWrites) return nullptr;
        return target == options_.rank ? parts[i].to : windows_.of_rank(target, parts[i].to);
      },
      copies_);
  const std::span<const PeerCopy> all(copies_), to_others = all.first(all.size() - own), to_own = all.last(own);
  // Two barriers: no rank may write while the memory is still in use elsewhere, and none may go on before all is
  // written.
  PeerBarriers& barriers = windows_.barriers();
  // Aside, a barrier of one block waits for the other GPUs, so that matrix products have the multiprocessors until all
  // ranks are there. When all blocks waited, products took 2.2 times as long.
  if (!over_stream.async)
    if (const auto batch = cuda::batch_of(to_others, to_own, options_.path))
      return barriers.copy_between(*batch, over_stream.stream);
  barriers.wait(over_stream);
  writes_.launch(to_others, to_own, options_.path, over_stream);
  barriers.wait(over_stream);
}

void Gathers::gather(Communicator& over, std::span<const GatherPart> parts, cudaStream_t stream) {
  copies_.clear();
  Launch launch(over, stream);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (paths_[i] != Path::kKernels) continue;
    if (is_even(parts[i].offsets_bytes))
      launch.all_gather(parts[i].from, parts[i].to, parts[i].offsets_bytes[1]);
    else
      gather_piecewise(launch, parts[i]);
  }
  launch.go();
  cuda::launch_copies(copies_, PeerCopyPath::kProcessors, stream);
}

void Gathers::gather_piecewise(Launch& launch, const GatherPart& part) {
  const auto place = [&](int rank) { return part.offsets_bytes[static_cast<std::size_t>(rank)]; };
  const int own_rank = options_.rank;
  const std::int64_t own = place(own_rank + 1) - place(own_rank);
  for (int other = 0; other < options_.ranks; ++other) {
    if (other == own_rank) continue;
    launch.send(part.from, own, other);
    launch.receive(part.to + place(other), place(other + 1) - place(other), other);
  }
  copies_.push_back({.from = part.from, .to = part.to + place(own_rank), .bytes = own});
}

}  // namespace fp8lab::nccl
