#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// out[c * out_stride + r] = in[r * in_stride + c] for `rows` x `cols` bytes that do not overlap `out`.
struct ByteTranspose {
  const std::uint8_t* in = nullptr;
  std::int64_t in_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint8_t* out = nullptr;
  std::int64_t out_stride = 0;
};
void transpose_bytes(const ByteTranspose& args);

}  // namespace fp8lab::cpu
