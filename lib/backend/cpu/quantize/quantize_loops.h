#pragma once

#include <cstdint>

// The innermost loops of quantization, compiled once per instruction set. They are plain arithmetic on contiguous runs;
// layouts, scales and rare cases stay with the callers, which are compiled once.
namespace fp8lab::cpu {

/// `count` contiguous elements in runs of `run` (the last one may be shorter); run k is cast with scales[k].
template <class Element>
struct CastRuns {
  const Element* in = nullptr;
  std::uint8_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t run = 0;
  const float* scales = nullptr;
  /// Writes the data past the caches, if there is only one run and the instruction set has such stores. `data` must
  /// then be aligned to 64 bytes, and the caller must issue a fence before other threads read them.
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

/// BF16 elements are given by their bits. A magnitude is a float's bits without the sign: ordered like the values, with
/// Inf and then NaN above all.
struct QuantizeLoops {
  /// magnitudes[k] = max(magnitudes[k], magnitudes of run k).
  void (*amax_bf16)(const std::uint16_t* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);
  void (*amax_f32)(const float* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes);

  /// data = encode(in * scale) of core/float8.h, bit for bit, if the input is finite and the scale finite and
  /// positive; otherwise the data are meaningless. Returns the largest magnitude if there is only one run, else 0:
  /// callers that scale by runs have measured them already.
  std::uint32_t (*cast_bf16_e4m3)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_bf16_e5m2)(const CastRuns<std::uint16_t>& runs);
  std::uint32_t (*cast_f32_e4m3)(const CastRuns<float>& runs);
  std::uint32_t (*cast_f32_e5m2)(const CastRuns<float>& runs);

  void (*transpose)(const Transpose& args);
};

// One per source file; the build decides which exist.
extern const QuantizeLoops kQuantizeLoopsBaseline;
extern const QuantizeLoops kQuantizeLoopsAvx2;
extern const QuantizeLoops kQuantizeLoopsAvx512;

}  // namespace fp8lab::cpu
