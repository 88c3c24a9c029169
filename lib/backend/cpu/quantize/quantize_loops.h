#pragma once

#include <cstdint>

// The innermost loops of quantization, compiled once per instruction set. They are plain arithmetic on contiguous runs;
// layouts, scales and everything rare stay with the callers, which are compiled once.
namespace fp8lab::cpu {

/// `count` contiguous elements in runs of `run` (the last one may be shorter), run k under scales[k].
template <class Element>
struct CastRuns {
  const Element* in = nullptr;
  std::uint8_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t run = 0;
  const float* scales = nullptr;
  /// Write quantized data past the caches, if there is one run and the instruction set can; quantized data must be
  /// aligned to 64 bytes. Order with other threads' reads then takes a fence.
  bool past_caches = false;
};

/// out[c * out_stride + r] = in[r * in_stride + c] for `rows` x `cols` elements of 16 bits.
struct Transpose {
  const std::uint16_t* in = nullptr;
  std::int64_t in_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint16_t* out = nullptr;
  std::int64_t out_stride = 0;
};

/// BF16 elements are given by their bits. A magnitude is a float's bits without the sign: ordered as the value is, with
/// Inf and then NaN on top.
struct QuantizeLoops {
  /// magnitudes[k] = max(magnitudes[k], those of run k).
  void (*amax_bf16)(const std::uint16_t* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);
  void (*amax_f32)(const float* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);

  /// quantized data = encode(in * scale) of core/float8.h, bit for bit, wherever the input is finite and the scale
  /// finite and positive; elsewhere the quantized data mean nothing. Return the largest magnitude where one run is all
  /// there is, else 0: who scales by runs has measured them.
  std::uint32_t (*cast_bf16_e4m3)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_bf16_e5m2)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_f32_e4m3)(const CastRuns<float>& runs);
  std::uint32_t (*cast_f32_e5m2)(const CastRuns<float>& runs);

  void (*transpose)(const Transpose& args);
};

// One per source file; which exist is the build's choice.
extern const QuantizeLoops kQuantizeLoopsBaseline;
extern const QuantizeLoops kQuantizeLoopsAvx2;
extern const QuantizeLoops kQuantizeLoopsAvx512;

}  // namespace fp8lab::cpu
