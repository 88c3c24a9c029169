#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab {

/// Conversions of a run of float bit patterns on the GPU. `ours` is core/float8.h compiled for the GPU, `hardware` the
/// GPU's own conversion instruction.
struct ConvertedRun {
  std::vector<std::uint8_t> e4m3_ours;
  std::vector<std::uint8_t> e4m3_hardware;
  std::vector<std::uint8_t> e5m2_ours;
  std::vector<std::uint8_t> e5m2_hardware;
  std::vector<std::uint8_t> e8m0_rceil;  ///< the byte for the pattern as an E4M3 amax
  std::vector<std::uint8_t> e8m0_floor;
};

/// Converts the floats whose bits are first, first + 1, ..., first + count - 1 on the current GPU.
ConvertedRun convert_on_gpu(std::uint32_t first, std::uint32_t count);

/// Decodes all 256 codes on the GPU, as float bits: E4M3, then E5M2, then E8M0.
std::vector<std::uint32_t> decode_on_gpu();

}  // namespace fp8lab
