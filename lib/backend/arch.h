#pragma once

#include <span>
#include <string_view>

namespace fp8lab {

/// Which products a generation of GPUs has in hardware. The profile is data apart from the device: `cpu` and `meta`
/// accept any profile, `cuda` reads its own from the GPU.
struct ArchProfile {
  std::string_view name;
  std::string_view title;
  /// True: FP8 products read either orientation. False: every operand must be contiguous along the reduction axis, so a
  /// per-tensor FP8 matrix used in backward needs a transposed copy.
  bool fp8_gemm_any_orientation = false;
  /// True: products of microscaled (MXFP8) operands run in hardware. False: they are emulated from exactly dequantized
  /// operands.
  bool mxfp8_gemm = false;
};

std::span<const ArchProfile> arch_profiles();
/// Throws Error listing the known names.
const ArchProfile& arch_profile(std::string_view name);

}  // namespace fp8lab
