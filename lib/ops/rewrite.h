#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ops/quantize.h"

namespace fp8lab {

/// A quantized tensor to be rewritten in place from new values of its shape: all of its orientations, scales included.
struct Rewrite {
  Tensor value;
  QuantizedTensor* to = nullptr;
  const Quantizer* quantizer = nullptr;  ///< `orientations` and `holder` of the quantizer are unused
  std::optional<DType> nominal{};  ///< `value` is rounded to this type before the cast; absent: it is cast unrounded
  /// True if the kernel that computes `value` also casts or measures it: it gets Rewriter::target().
  bool fused_cast = false;
  /// f32 [1]: the tensor is cast under this scale and not measured, although its format requires its amax. Null: as the
  /// format requires.
  const float* scale = nullptr;
};

/// Rewrites all tensors together. Tensors that are measured over the same ranks share one reduction, so `rewrites` must
/// be the same on every rank. Values for blocks are rounded to their nominal types one tensor at a time, in a
/// temporary.
void quantize_in_place(Device& device, std::span<const Rewrite> rewrites);

/// quantize_in_place in two steps around the kernel that computes the values. If a scale is known beforehand, that
/// kernel also casts; if the scale follows from the entire tensor, that kernel measures, and only the cast remains. A
/// Rewriter that is reused allocates nothing on the heap.
class Rewriter {
 public:
  /// Call before the values are computed. `rewrites` must stay valid until finish().
  void begin(Device& device, std::span<const Rewrite> rewrites);
  /// What the kernel that computes value `index` does with it; empty under blocks.
  CastTarget target(std::size_t index) const;
  /// Call when the values are computed.
  void finish(Device& device);

 private:
  /// Amaxes that the same ranks share: neighbours in amaxes_.
  struct Reduction {
    ProcessGroup* group;
    std::int64_t count, end;
  };

  Reduction& reduction_of(const Rewrite& rewrite);
  CastTarget orientations_of(const Rewrite& rewrite) const;
  float* amax_slot(std::size_t index) const;
  void launch(Device& device) const;

  std::span<const Rewrite> rewrites_;
  std::vector<std::int64_t> slots_;  ///< index of each rewrite's amax in amaxes_; negative: it has none
  std::vector<Reduction> reductions_;
  std::vector<ListCast> casts_;
  Tensor amaxes_;
};

}  // namespace fp8lab
