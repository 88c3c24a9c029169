#pragma once

#include "core/elementary.h"

namespace fp8lab {

/// What becomes of one query's attention when attention over further keys is added (AttentionMergeArgs in kernels.h):
/// its `lse`, and the weights of what it was and of what is added. The same bits on every device.
struct AttentionMerge {
  float lse;
  float weight;
  float part_weight;
};

F8_HOST_DEVICE inline AttentionMerge merge_attention(float lse, float part_lse) {
  const float nothing = float_from_bits(0xFF800000u);  // -inf
  if (part_lse == nothing) return {.lse = lse, .weight = 1.0f, .part_weight = 0.0f};
  if (lse == nothing) return {.lse = part_lse, .weight = 0.0f, .part_weight = 1.0f};
  // The weights follow from differences of the two lse, because the rounding of their sum's logarithm would make the
  // weights' sum differ from 1 by as much. A NaN in either makes all three NaN.
  const float larger = lse > part_lse ? lse : part_lse;
  const float a = exponential(lse - larger), b = exponential(part_lse - larger), sum = a + b;
  return {.lse = larger + logarithm(sum), .weight = a / sum, .part_weight = b / sum};
}

}  // namespace fp8lab
