#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ops/quantize.h"

namespace fp8lab {

/// A quantized tensor to be rewritten from new values of its shape: every orientation that it has, scales included,
/// where it lies.
struct Rewrite {
  Tensor value;
  QuantizedTensor* to = nullptr;
  const Quantizer* quantizer = nullptr;  ///< its orientations and holder are unused
  std::optional<DType> nominal{};        ///< what `value` is rounded to before it is cast; absent: it is cast as it is
  /// The kernel that makes `value` has been given Rewriter::target().
  bool by_maker = false;
};

/// All at once: tensors that are measured over ranks share one reduction, so `rewrites` must be alike on every rank.
/// Values for blocks are rounded to their nominal types one at a time, in a temporary.
void quantize_in_place(Device& device, std::span<const Rewrite> rewrites);

/// quantize_in_place around the kernel that makes the values. Where a scale is known beforehand that kernel casts too;
/// where it comes from the entire tensor that kernel measures, and only the cast is left. A Rewriter that is kept takes
/// nothing from the heap.
class Rewriter {
 public:
  /// Before values are made. `rewrites` stay where they are until finish().
  void begin(Device& device, std::span<const Rewrite> rewrites);
  /// What the maker of value `index` does with it; nothing under blocks.
  CastTarget target(std::size_t index) const;
  /// When the values are made.
  void finish(Device& device);

 private:
  CastTarget orientations_of(const Rewrite& rewrite) const;
  float* amax_slot(std::size_t index) const;
  void launch(Device& device) const;

  std::span<const Rewrite> rewrites_;
  std::vector<std::int64_t> slots_;  ///< of each rewrite among the amaxes; negative: it has none
  std::vector<ListCast> casts_;
  Tensor amaxes_;
  ProcessGroup* group_ = nullptr;
};

}  // namespace fp8lab
