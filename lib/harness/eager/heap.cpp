#include "harness/eager/heap.h"

namespace fp8lab::eager {

Block Heap::allocate(Bytes bytes, Owner owner) {
  if (bytes <= 0) return 0;
  const Bytes rounded = (bytes + grain_ - 1) / grain_ * grain_;
  live_ += rounded;
  by_owner_[static_cast<std::size_t>(owner)] += rounded;
  consider_peak();
  if (unused_.empty()) {
    entries_.push_back({rounded, owner});
    return entries_.size();
  }
  const Block block = unused_.back();
  unused_.pop_back();
  entries_[block - 1] = {rounded, owner};
  return block;
}

void Heap::free(Block& block) {
  if (block == 0) return;
  const Entry& entry = entries_[block - 1];
  live_ -= entry.bytes;
  by_owner_[static_cast<std::size_t>(entry.owner)] -= entry.bytes;
  unused_.push_back(block);
  block = 0;
}

void Heap::enter(Phase phase) {
  phase_ = phase;
  consider_peak();
}

void Heap::consider_peak() {
  Peak& peak = peaks_[static_cast<std::size_t>(phase_)];
  if (live_ <= peak.bytes) return;
  peak = {live_, by_owner_};
}

}  // namespace fp8lab::eager
