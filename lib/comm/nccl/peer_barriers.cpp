#include "comm/nccl/peer_barriers.h"

#include <atomic>

namespace fp8lab::nccl {

AbortFlag::AbortFlag() : word_(cuda::allocate_pinned(sizeof(std::uint32_t))) {
  *reinterpret_cast<std::uint32_t*>(word_.get()) = 0;
}

void AbortFlag::set() noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word_.get())).store(1, std::memory_order_release);
}

cuda::PeerBarrier PeerBarriers::next(bool aside, std::uint32_t meetings) {
  const std::size_t row = aside ? cuda::PeerBarrier::kMostRanks : 0;
  std::uint32_t& held = held_[aside ? 1 : 0];
  cuda::PeerBarrier meeting{.flags = {},
                            .rank = args_.rank,
                            .ranks = static_cast<int>(args_.flags_by_rank.size()),
                            .number = held + 1,
                            .abandoned = args_.abort_flag->word()};
  for (std::size_t rank = 0; rank < args_.flags_by_rank.size(); ++rank) meeting.flags[rank] = flags_of(rank) + row;
  held += meetings;
  return meeting;
}

void PeerBarriers::meet(const cuda::CollectiveStream& lane) { cuda::peer_barrier(next(lane.aside, 1), lane.stream); }

void PeerBarriers::copy_between(const cuda::CopyBatch& batch, cudaStream_t stream) {
  std::uint32_t* const finished = flags_of(static_cast<std::size_t>(args_.rank)) + 2 * cuda::PeerBarrier::kMostRanks;
  cuda::peer_copy_between_barriers({.batch = batch, .meeting = next(false, 2), .finished = finished}, stream);
}

}  // namespace fp8lab::nccl
