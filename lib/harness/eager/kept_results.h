#pragma once

#include <vector>

#include "harness/eager/numbers.h"

namespace fp8lab::eager {

/// What the products and the attention of a recomputed layer return, if its recomputation finds them instead of
/// computing them again.
class KeptResults {
 public:
  KeptResults(const Numbers& numbers, Heap& heap, bool keeps)
      : heap_(heap), keeps_(keeps), alternates_(numbers.alternates) {}

  /// True if the layer keeps what attention returns.
  bool keeps() const { return keeps_; }
  /// True if it keeps what the next product returns. Products are counted in the order of forward.
  bool keeps_next_product();

  void begin_forward();
  void begin_recomputation() { recomputes_ = true; }
  /// A tensor of `bytes`, or if `is_kept` what the first forward made.
  Block make(bool is_kept, Bytes bytes);
  /// Frees a tensor, unless recomputation will find it.
  void drop(Block& block);
  /// The layer's backward has ended. Recomputation stops before the last product, so nothing takes its result, which
  /// lives until then.
  void end_backward();

 private:
  Heap& heap_;
  bool keeps_, alternates_;
  Bytes products_ = 0;
  std::vector<Block> blocks_;  ///< in the order of forward; 0: recomputation has taken it
  std::size_t next_ = 0;
  bool recomputes_ = false;
};

}  // namespace fp8lab::eager
