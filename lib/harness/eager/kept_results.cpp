#include "harness/eager/kept_results.h"

#include <algorithm>
#include <utility>

namespace fp8lab::eager {

bool KeptResults::keeps_next_product() {
  const bool is_odd = products_++ % 2 != 0;
  return keeps_ && !(alternates_ && is_odd);
}

void KeptResults::begin_forward() {
  blocks_.clear();
  next_ = 0;
  recomputes_ = false;
}

Block KeptResults::make(bool is_kept, Bytes bytes) {
  if (is_kept && recomputes_) return std::exchange(blocks_.at(next_++), 0);
  const Block out = heap_.allocate(bytes, Owner::kSaved);
  if (is_kept) blocks_.push_back(out);
  return out;
}

void KeptResults::drop(Block& block) {
  if (std::ranges::find(blocks_, block) == blocks_.end())
    heap_.free(block);
  else
    block = 0;
}

void KeptResults::end_backward() {
  for (Block& left : blocks_) heap_.free(left);
}

}  // namespace fp8lab::eager
