#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "harness/values/recording.h"

namespace fp8lab {

/// Which tensors of two runs are the same tensor. A module that is called twice has two outputs of one name: they are
/// paired by their number if both runs have equally many, and else by equal bits, in their order.
struct Pairs {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> of_a;  ///< for each tensor of `a` its position in `b`, or kNone
  std::vector<std::size_t> of_b;
};

Pairs pairs_of(const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b);

}  // namespace fp8lab
