#include "comm/nccl/meetings.h"

#include <atomic>

namespace fp8lab::nccl {

Abandonment::Abandonment() : word_(cuda::allocate_pinned(sizeof(std::uint32_t))) {
  *reinterpret_cast<std::uint32_t*>(word_.get()) = 0;
}

void Abandonment::set() noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word_.get())).store(1, std::memory_order_release);
}

cuda::CardMeeting CardMeetings::next(bool aside, std::uint32_t meetings) {
  const std::size_t row = aside ? cuda::CardMeeting::kMostRanks : 0;
  std::uint32_t& held = held_[aside ? 1 : 0];
  cuda::CardMeeting meeting{.flags = {},
                            .rank = args_.rank,
                            .ranks = static_cast<int>(args_.flags_by_rank.size()),
                            .number = held + 1,
                            .abandoned = args_.abandonment->word()};
  for (std::size_t rank = 0; rank < args_.flags_by_rank.size(); ++rank) meeting.flags[rank] = flags_of(rank) + row;
  held += meetings;
  return meeting;
}

void CardMeetings::meet(const cuda::LaneStream& lane) { cuda::peer_meet(next(lane.aside, 1), lane.stream); }

void CardMeetings::copy_between(const cuda::CopyBatch& batch, cudaStream_t stream) {
  std::uint32_t* const finished = flags_of(static_cast<std::size_t>(args_.rank)) + 2 * cuda::CardMeeting::kMostRanks;
  cuda::peer_copy_between_meetings({.batch = batch, .meeting = next(false, 2), .finished = finished}, stream);
}

}  // namespace fp8lab::nccl
