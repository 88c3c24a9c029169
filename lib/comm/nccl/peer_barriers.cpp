#include "comm/nccl/peer_barriers.h"

#include <atomic>

namespace fp8lab::nccl {

AbortFlag::AbortFlag() : word_(cuda::allocate_pinned(sizeof(std::uint32_t))) {
  *reinterpret_cast<std::uint32_t*>(word_.get()) = 0;
}

void AbortFlag::set() noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word_.get())).store(1, std::memory_order_release);
}

cuda::PeerBarrier PeerBarriers::next(bool async, std::uint32_t barriers) {
  const std::size_t row = async ? cuda::PeerBarrier::kMostRanks : 0;
  std::uint32_t& rounds = rounds_[async ? 1 : 0];
  cuda::PeerBarrier barrier{.flags = {},
                            .rank = args_.rank,
                            .ranks = static_cast<int>(args_.flags_by_rank.size()),
                            .number = rounds + 1,
                            .abandoned = args_.abort_flag->word()};
  for (std::size_t rank = 0; rank < args_.flags_by_rank.size(); ++rank) barrier.flags[rank] = flags_of(rank) + row;
  rounds += barriers;
  return barrier;
}

void PeerBarriers::wait(const cuda::CollectiveStream& over_stream) {
  cuda::peer_barrier(next(over_stream.async, 1), over_stream.stream);
}

void PeerBarriers::copy_between(const cuda::CopyBatch& batch, cudaStream_t stream) {
  std::uint32_t* const finished = flags_of(static_cast<std::size_t>(args_.rank)) + 2 * cuda::PeerBarrier::kMostRanks;
  cuda::peer_copy_between_barriers({.batch = batch, .barrier = next(false, 2), .finished = finished}, stream);
}

}  // namespace fp8lab::nccl
