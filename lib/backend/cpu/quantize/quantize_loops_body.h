#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backend/cpu/quantize/quantize_loops.h"
#include "core/float8.h"

// The source that every variant of QuantizeLoops compiles for its own instruction set.
//
// Hazard: the linker keeps one copy of an inline function, and it could be a copy compiled for an instruction set that
// older machines lack. Rule: everything here has internal linkage, and nothing calls an inline function of another
// header.
namespace fp8lab::cpu {
namespace {

static_assert(std::endian::native == std::endian::little, "pairs of BF16 are taken apart as 32-bit words");

// Signed, because SSE2 has no unsigned comparison; magnitudes leave the sign bit clear.
inline std::int32_t larger(std::int32_t a, std::int32_t b) { return a < b ? b : a; }
inline std::int32_t smaller(std::int32_t a, std::int32_t b) { return b < a ? b : a; }
constexpr std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
constexpr float float_of(std::int32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr std::int32_t kMagnitude = 0x7FFFFFFF;
constexpr std::int32_t kExponent = 0x7F800000;

/// encode<Format>() of a magnitude times a positive scale. The code is in bits 0 to 6; the bits above are meaningless.
template <class Format>
inline std::uint32_t encode_magnitude(std::int32_t magnitude, float scale) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr auto kMinNormalFields = static_cast<std::uint32_t>(bits_of(Format::kMinNormal)) >> kDropped;
  // The amount to add so that the smallest normal binade yields its own fields. It must be even, so that ties still
  // round to even.
  constexpr std::uint32_t kOffset = 128 - kMinNormalFields % 128;
  static_assert(kOffset % 2 == 0);
  const std::int32_t clamped = smaller(bits_of(float_of(magnitude) * scale), bits_of(Format::kMax));
  const auto binade = static_cast<std::uint32_t>(larger(clamped & kExponent, bits_of(Format::kMinNormal)));
  // A float whose ulp is one quantum of the code: adding it rounds to the quantum, ties to even, and leaves the number
  // of quanta, plus the offset, in the low bits.
  const float aligner = float_of(static_cast<std::int32_t>(binade + (std::uint32_t{kDropped} << 23) + kOffset));
  const auto quanta = static_cast<std::uint32_t>(bits_of(float_of(clamped) + aligner));
  return quanta + (binade >> kDropped);
}

inline std::int32_t magnitude_of(float x) { return bits_of(x) & kMagnitude; }
inline std::int32_t magnitude_of(std::uint16_t bf16) { return (std::int32_t{bf16} << 16) & kMagnitude; }
inline std::uint32_t sign_of(float x) { return (static_cast<std::uint32_t>(bits_of(x)) >> 24) & 0x80u; }
inline std::uint32_t sign_of(std::uint16_t bf16) { return (std::uint32_t{bf16} >> 8) & 0x80u; }

/// Casts elements under one scale and returns their largest magnitude; computing it costs nothing if the result is
/// unused.
template <class Format, class Element>
inline std::int32_t cast_each(const Element* in, std::uint8_t* data, std::int64_t count, float scale) {
  std::int32_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    amax = larger(amax, magnitude_of(in[i]));
    const std::uint32_t code = encode_magnitude<Format>(magnitude_of(in[i]), scale) & 0x7Fu;
    data[i] = static_cast<std::uint8_t>(code | sign_of(in[i]));
  }
  return amax;
}

/// A group of BF16 elements that the compiler turns into straight-line code on the widest registers.
template <class Format, int kCount>
struct Group {
  alignas(64) std::uint8_t data[kCount];

  /// `amax` has kCount / 2 lanes.
  void cast(const std::uint16_t* in, float scale, std::int32_t* amax) {
    // Two elements per 32-bit word: one is widened by a shift, the other by a mask, and the results go back into one
    // word without moving between lanes.
    std::uint32_t words[kCount / 2];
    for (int k = 0; k < kCount / 2; ++k) {
      std::uint32_t word;
      std::memcpy(&word, in + 2 * k, sizeof word);
      const auto low = static_cast<std::int32_t>((word << 16) & kMagnitude);
      const auto high = static_cast<std::int32_t>(word & 0x7FFF0000u);
      amax[k] = larger(amax[k], larger(low, high));
      words[k] = (encode_magnitude<Format>(low, scale) & 0x7Fu) |
                 ((encode_magnitude<Format>(high, scale) & 0x7Fu) << 16) | ((word >> 8) & 0x00800080u);
    }
    std::uint16_t words16[kCount];
    std::memcpy(words16, words, sizeof words16);
    for (int k = 0; k < kCount; ++k) data[k] = static_cast<std::uint8_t>(words16[k]);
  }
};

constexpr int kLine = 64;

/// Casts the only run and returns its largest magnitude.
template <class Format, class Line>
inline std::int32_t cast_single(const CastRuns<std::uint16_t>& runs) {
  std::int32_t lanes[kLine / 2] = {};
  const float scale = runs.scales[0];
  std::int64_t i = 0;
  if (runs.past_caches) {
    for (; i + kLine <= runs.count; i += kLine) {
      Group<Format, kLine> group;
      group.cast(runs.in + i, scale, lanes);
      Line::write_past_caches(group.data, runs.data + i);
    }
  } else {
    for (; i + kLine <= runs.count; i += kLine) {
      Group<Format, kLine> group;
      group.cast(runs.in + i, scale, lanes);
      std::memcpy(runs.data + i, group.data, kLine);
    }
  }
  std::int32_t amax = cast_each<Format>(runs.in + i, runs.data + i, runs.count - i, scale);
  for (int k = 0; k < kLine / 2; ++k) amax = larger(amax, lanes[k]);
  return amax;
}
template <class Format, class Line>
inline std::int32_t cast_single(const CastRuns<float>& runs) {
  return cast_each<Format>(runs.in, runs.data, runs.count, runs.scales[0]);
}

/// The length of a microscaling block.
constexpr int kShortRun = 32;

/// Casts one of several runs, in groups of kShortRun since most such runs are short.
template <class Format>
inline void cast_run(const std::uint16_t* in, std::uint8_t* data, std::int64_t count, float scale) {
  std::int64_t i = 0;
  for (; i + kShortRun <= count; i += kShortRun) {
    Group<Format, kShortRun> group;
    std::int32_t unused[kShortRun / 2] = {};
    group.cast(in + i, scale, unused);
    std::memcpy(data + i, group.data, kShortRun);
  }
  cast_each<Format>(in + i, data + i, count - i, scale);
}
template <class Format>
inline void cast_run(const float* in, std::uint8_t* data, std::int64_t count, float scale) {
  cast_each<Format>(in, data, count, scale);
}

/// Runs of one element: a scale for each, as along a row that crosses blocks which run down the columns.
template <class Format, class Element>
inline void cast_single(const Element* in, const float* scales, std::int64_t count, std::uint8_t* data) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = encode_magnitude<Format>(magnitude_of(in[i]), scales[i]) & 0x7Fu;
    data[i] = static_cast<std::uint8_t>(code | sign_of(in[i]));
  }
}
template <class Format, class Element>
void cast_singles(const CastRuns<Element>& runs) {
  const Element* in = runs.in;
  const float* scales = runs.scales;
  std::uint8_t* data = runs.data;
  const std::int64_t count = runs.count;
  std::int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    // A local line cannot overlap `scales`, so the compiler need not reload the scales after each store.
    alignas(64) std::uint8_t line[kLine];
    cast_single<Format>(in + i, scales + i, kLine, line);
    std::memcpy(data + i, line, kLine);
  }
  cast_single<Format>(in + i, scales + i, count - i, data + i);
}

template <class Element>
void amax_singles(const Element* in, std::int64_t count, std::uint32_t* magnitudes) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<std::uint32_t>(magnitude_of(in[i]));
    magnitudes[i] = magnitudes[i] < magnitude ? magnitude : magnitudes[i];
  }
}

inline std::int32_t amax_run(const std::uint16_t* in, std::int64_t count) {
  std::int16_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<std::int16_t>(in[i] & 0x7FFF);
    amax = amax < magnitude ? magnitude : amax;
  }
  return std::int32_t{amax} << 16;
}

inline std::int32_t amax_run(const float* in, std::int64_t count) {
  std::int32_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) amax = larger(amax, bits_of(in[i]) & kMagnitude);
  return amax;
}

/// Calls work(k, first element, length) for each run; the length is a compile-time constant for full runs of kShortRun.
template <class Work>
inline void for_each_run_of(std::int64_t count, std::int64_t run, const Work& work) {
  const std::int64_t full = count / run;
  if (run == kShortRun) {
    for (std::int64_t k = 0; k < full; ++k) work(k, k * kShortRun, std::int64_t{kShortRun});
  } else {
    for (std::int64_t k = 0; k < full; ++k) work(k, k * run, run);
  }
  if (full * run < count) work(full, full * run, count - full * run);
}

template <class Element>
void amax_runs(const Element* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes) {
  if (run == 1) return amax_singles(in, count, magnitudes);
  for_each_run_of(count, run, [&](std::int64_t k, std::int64_t first, std::int64_t length) {
    const auto amax = static_cast<std::uint32_t>(amax_run(in + first, length));
    magnitudes[k] = magnitudes[k] < amax ? amax : magnitudes[k];
  });
}

template <class Format, class Line, class Element>
std::uint32_t cast_runs(const CastRuns<Element>& runs) {
  if (runs.count <= runs.run) return static_cast<std::uint32_t>(cast_single<Format, Line>(runs));
  if (runs.run == 1) {
    cast_singles<Format>(runs);
    return 0;
  }
  for_each_run_of(runs.count, runs.run, [&](std::int64_t k, std::int64_t first, std::int64_t length) {
    cast_run<Format>(runs.in + first, runs.data + first, length, runs.scales[k]);
  });
  return 0;
}

/// Transposes four rows at a time, as 64-bit words of four columns: two rounds of exchanging parts of words transpose a
/// 4 x 4 square.
inline void transpose(const Transpose& args) {
  constexpr std::uint64_t kEven = 0x0000FFFF0000FFFFu;
  constexpr std::uint64_t kLow = 0x00000000FFFFFFFFu;
  constexpr std::int64_t kBatch = 16;
  const std::int64_t in_stride = args.in_stride;
  const std::int64_t out_stride = args.out_stride;
  const std::int64_t squares = args.cols / 4;
  std::int64_t row = 0;
  for (; row + 4 <= args.rows; row += 4) {
    const std::uint16_t* from = args.in + row * in_stride;
    std::uint16_t* to = args.out + row;
    for (std::int64_t square = 0; square < squares; square += kBatch) {
      const std::int64_t batch = squares - square < kBatch ? squares - square : kBatch;
      std::uint64_t columns[4][kBatch];
      for (std::int64_t i = 0; i < batch; ++i) {
        std::uint64_t r[4];
        for (int k = 0; k < 4; ++k) std::memcpy(&r[k], from + k * in_stride + 4 * (square + i), sizeof r[k]);
        const std::uint64_t even01 = (r[0] & kEven) | ((r[1] & kEven) << 16);
        const std::uint64_t odd01 = ((r[0] >> 16) & kEven) | (r[1] & ~kEven);
        const std::uint64_t even23 = (r[2] & kEven) | ((r[3] & kEven) << 16);
        const std::uint64_t odd23 = ((r[2] >> 16) & kEven) | (r[3] & ~kEven);
        columns[0][i] = (even01 & kLow) | (even23 << 32);
        columns[1][i] = (odd01 & kLow) | (odd23 << 32);
        columns[2][i] = (even01 >> 32) | (even23 & ~kLow);
        columns[3][i] = (odd01 >> 32) | (odd23 & ~kLow);
      }
      for (std::int64_t i = 0; i < batch; ++i)
        for (int k = 0; k < 4; ++k)
          std::memcpy(to + (4 * (square + i) + k) * out_stride, &columns[k][i], sizeof(std::uint64_t));
    }
    for (std::int64_t col = 4 * squares; col < args.cols; ++col)
      for (int k = 0; k < 4; ++k) to[col * out_stride + k] = from[k * in_stride + col];
  }
  for (; row < args.rows; ++row)
    for (std::int64_t col = 0; col < args.cols; ++col)
      args.out[col * out_stride + row] = args.in[row * in_stride + col];
}

/// `Line` is how this instruction set writes 64 aligned bytes past the caches.
template <class Line>
constexpr QuantizeLoops make_quantize_loops() {
  return {.amax_bf16 = amax_runs<std::uint16_t>,
          .amax_f32 = amax_runs<float>,
          .cast_bf16_e4m3 = cast_runs<E4M3, Line, std::uint16_t>,
          .cast_bf16_e5m2 = cast_runs<E5M2, Line, std::uint16_t>,
          .cast_f32_e4m3 = cast_runs<E4M3, Line, float>,
          .cast_f32_e5m2 = cast_runs<E5M2, Line, float>,
          .transpose = transpose};
}

}  // namespace
}  // namespace fp8lab::cpu
