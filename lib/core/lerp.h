#pragma once

#include "core/float_bits.h"

namespace fp8lab {

/// from + weight (to - from), bit for bit the same on every device. As torch.lerp, it starts from the nearer end: the
/// sum then rounds at the size of the result, a weight of 0 gives `from`, and a weight of 1 gives `to`.
F8_HOST_DEVICE constexpr float lerp(float from, float to, float weight) {
  const bool near_from = weight < 0.5f;
  return (near_from ? from : to) + (near_from ? weight : weight - 1.0f) * (to - from);
}

}  // namespace fp8lab
