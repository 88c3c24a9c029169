#include "comm/nccl/meetings.h"

#include <atomic>

namespace fp8lab::nccl {

Abandonment::Abandonment() : word_(cuda::allocate_pinned(sizeof(std::uint32_t))) {
  *reinterpret_cast<std::uint32_t*>(word_.get()) = 0;
}

void Abandonment::set() noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word_.get())).store(1, std::memory_order_release);
}

void CardMeetings::meet(cudaStream_t stream, bool aside) {
  const std::size_t row = aside ? cuda::CardMeeting::kMostRanks : 0;
  cuda::CardMeeting meeting{.flags = {},
                            .rank = args_.rank,
                            .ranks = static_cast<int>(args_.flags_by_rank.size()),
                            .number = ++held_[aside ? 1 : 0],
                            .abandoned = args_.abandonment->word()};
  for (std::size_t rank = 0; rank < args_.flags_by_rank.size(); ++rank)
    meeting.flags[rank] = reinterpret_cast<std::uint32_t*>(args_.flags_by_rank[rank]) + row;
  cuda::peer_meet(meeting, stream);
}

}  // namespace fp8lab::nccl
