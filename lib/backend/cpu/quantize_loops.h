#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// The innermost loops of quantization, compiled once per instruction set. They are plain arithmetic on contiguous runs;
// layouts, scales and everything rare stay with the callers, which are compiled once.
namespace fp8lab::cpu {

/// `count` contiguous elements in runs of `run` (the last one may be shorter), run k under scales[k].
template <class Element>
struct CastRuns {
  const Element* in = nullptr;
  std::uint8_t* codes = nullptr;
  std::int64_t count = 0;
  std::int64_t run = 0;
  const float* scales = nullptr;
};

/// BF16 elements are given by their bits. A magnitude is a float's bits without the sign: ordered as the value is, with
/// Inf and then NaN on top.
struct QuantizeLoops {
  std::string_view name;

  /// magnitudes[k] = max(magnitudes[k], those of run k).
  void (*amax_bf16)(const std::uint16_t* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);
  void (*amax_f32)(const float* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);

  /// codes = encode(in * scale) of core/float8.h, bit for bit, wherever the input is finite and the scale finite and
  /// positive; elsewhere the codes mean nothing. Return the largest magnitude where one run is all there is, else 0: who scales
  /// by runs has measured them.
  std::uint32_t (*cast_bf16_e4m3)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_bf16_e5m2)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_f32_e4m3)(const CastRuns<float>& runs);
  std::uint32_t (*cast_f32_e5m2)(const CastRuns<float>& runs);

  /// out[c * rows + r] = in[r * in_stride + c] for `rows` x `cols` elements of 16 bits.
  void (*transpose)(const std::uint16_t* in, std::int64_t in_stride, std::int64_t rows, std::int64_t cols,
                    std::uint16_t* out);

  /// Copies past the caches. Both ends aligned to 64, `bytes` divisible by 64.
  void (*stream)(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes);
};

/// The variants that this machine can run, best first, never empty.
std::span<const QuantizeLoops* const> quantize_loops();

// One per source file; which exist is the build's choice (quantize_loops_x86.cpp, quantize_loops_portable.cpp).
extern const QuantizeLoops kQuantizeLoopsBaseline;
extern const QuantizeLoops kQuantizeLoopsAvx2;
extern const QuantizeLoops kQuantizeLoopsAvx512;

}  // namespace fp8lab::cpu
