#include "harness/eager/ddp.h"

#include <array>
#include <limits>
#include <utility>

namespace fp8lab::eager {
namespace {

constexpr std::array kOneBucket{std::numeric_limits<Bytes>::max()};
}  // namespace

void Buckets::before_forward(bool is_after_first_step) {
  if (blocks_.empty()) make(kOneBucket);
  if (!is_after_first_step || is_rebuilt_) return;
  is_rebuilt_ = true;
  if (over_nccl_ && !blocks_.empty()) std::swap(held_by_nccl_, blocks_.front());
  for (Block& block : blocks_) heap_.free(block);
  blocks_.clear();
  make(std::array{kFirstBucket, Bytes{25} << 20});
}

void Buckets::make(std::span<const Bytes> limits) {
  Bytes open = 0;
  const auto close = [&] {
    if (open > 0) blocks_.push_back(heap_.allocate(open, Owner::kBuckets));
    open = 0;
  };
  for (const Bytes gradient : gradients_) {
    open += gradient;
    if (open >= limits[blocks_.empty() ? 0 : limits.size() - 1]) close();
  }
  close();
}

}  // namespace fp8lab::eager
