#pragma once

#include <span>
#include <string_view>

namespace fp8lab {

/// What a generation of GPUs can multiply. Data beside the device: `cpu` and `meta` take any, `cuda` reads it from the
/// GPU.
struct ArchProfile {
  std::string_view name;
  std::string_view title;
  /// FP8 products in both orientations. Without it every operand must be contiguous along the reduction axis, so a
  /// per-tensor FP8 matrix used in backward needs a transposed copy.
  bool fp8_gemm_any_orientation = false;
  /// Products of microscaled operands; without it they are emulated from exactly dequantized ones.
  bool mxfp8_gemm = false;
};

std::span<const ArchProfile> arch_profiles();
/// Throws Error listing the known ones.
const ArchProfile& arch_profile(std::string_view name);

}  // namespace fp8lab
