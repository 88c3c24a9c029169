#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/dtype.h"

// The f32 values that Adam updates, in host memory, and the forms in which a parameter and its master store them
// (AdamOptions::master).
namespace fp8lab {

/// The values rounded to f32, f16 or bf16, as casts round.
std::vector<std::byte> rounded(DType dtype, std::span<const float> values);

/// A bf16 parameter and its i16 remainder (rule: kernels.h).
struct Parts16 {
  std::vector<std::byte> high;
  std::vector<std::byte> low;
};
Parts16 parts16_of(std::span<const float> values);
std::vector<float> from_parts16(std::span<const std::byte> high, std::span<const std::byte> low);

}  // namespace fp8lab
