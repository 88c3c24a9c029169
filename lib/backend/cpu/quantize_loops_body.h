#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backend/cpu/quantize_loops.h"
#include "core/float8.h"

// The source that every variant of QuantizeLoops compiles for its own instruction set. Everything here has internal
// linkage, and nothing calls an inline function of another header: the linker keeps one copy of such a function, and it
// could be the one that older machines cannot run.
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

/// encode<Format>() of a magnitude times a positive scale. The code lies in bits 0 to 6, what is above means nothing.
template <class Format>
inline std::uint32_t encode_magnitude(std::int32_t magnitude, float scale) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr auto kMinNormalExponent = static_cast<std::uint32_t>(bits_of(Format::kMinNormal)) >> kDropped;
  const std::int32_t clamped = smaller(bits_of(float_of(magnitude) * scale), bits_of(Format::kMax));
  const std::int32_t binade = larger(clamped & kExponent, bits_of(Format::kMinNormal));
  // The ulp of this power of two is the quantum of the code, so the addition rounds to it, ties to even, and leaves the
  // number of quanta in the last bits. The power itself contributes none to bits 0 to 7.
  const float aligner = float_of(binade) * static_cast<float>(1 << kDropped);
  const auto quanta = static_cast<std::uint32_t>(bits_of(float_of(clamped) + aligner));
  return quanta + (static_cast<std::uint32_t>(binade) >> kDropped) - kMinNormalExponent;
}

/// Two BF16 elements, taken as a 32-bit word: widening the one is a shift and the other a mask, and their codes pack without
/// moving between lanes.
struct Bf16Pair {
  std::uint32_t word;
  explicit Bf16Pair(const std::uint16_t* in) { std::memcpy(&word, in, sizeof word); }
  std::int32_t low() const { return static_cast<std::int32_t>((word << 16) & kMagnitude); }
  std::int32_t high() const { return static_cast<std::int32_t>(word & 0x7FFF0000u); }
  /// In the lower half of the word.
  template <class Format>
  std::uint32_t codes(float scale) const {
    const std::uint32_t low_code = (encode_magnitude<Format>(low(), scale) & 0x7Fu) | ((word >> 8) & 0x80u);
    const std::uint32_t high_code = ((encode_magnitude<Format>(high(), scale) << 8) & 0x7F00u) | ((word >> 16) & 0x8000u);
    return low_code | high_code;
  }
};

template <class Format>
inline void cast_single(std::uint16_t in, std::uint8_t& code, float scale) {
  const auto magnitude = static_cast<std::int32_t>((std::uint32_t{in} << 16) & kMagnitude);
  code = static_cast<std::uint8_t>((encode_magnitude<Format>(magnitude, scale) & 0x7Fu) | ((in >> 8) & 0x80u));
}

/// Elements under one scale, and their largest magnitude.
template <class Format>
inline std::int32_t cast_and_measure(const std::uint16_t* in, std::uint8_t* codes, std::int64_t count, float scale) {
  std::int32_t amax = 0;
  for (std::int64_t i = 0; i < count / 2; ++i) {
    const Bf16Pair pair(in + 2 * i);
    amax = larger(amax, larger(pair.low(), pair.high()));
    const auto packed = static_cast<std::uint16_t>(pair.codes<Format>(scale));
    std::memcpy(codes + 2 * i, &packed, sizeof packed);
  }
  if (count % 2 == 0) return amax;
  cast_single<Format>(in[count - 1], codes[count - 1], scale);
  return larger(amax, (std::int32_t{in[count - 1]} << 16) & kMagnitude);
}

/// The same without the magnitude. Runs are short here: groups of a fixed length become straight-line code, where a loop
/// over any length spends its time on its ends.
template <class Format>
inline void cast_run(const std::uint16_t* in, std::uint8_t* codes, std::int64_t count, float scale) {
  constexpr int kPairs = 16;
  std::int64_t i = 0;
  for (; i + 2 * kPairs <= count; i += 2 * kPairs) {
    std::uint32_t wide[kPairs];
    for (int k = 0; k < kPairs; ++k) wide[k] = Bf16Pair(in + i + 2 * k).codes<Format>(scale);
    std::uint16_t packed[kPairs];
    for (int k = 0; k < kPairs; ++k) packed[k] = static_cast<std::uint16_t>(wide[k]);
    std::memcpy(codes + i, packed, sizeof packed);
  }
  for (; i < count; ++i) cast_single<Format>(in[i], codes[i], scale);
}

template <class Format>
inline std::int32_t cast_and_measure(const float* in, std::uint8_t* codes, std::int64_t count, float scale) {
  std::int32_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t bits = bits_of(in[i]);
    amax = larger(amax, bits & kMagnitude);
    const std::uint32_t sign = (static_cast<std::uint32_t>(bits) >> 24) & 0x80u;
    codes[i] = static_cast<std::uint8_t>((encode_magnitude<Format>(bits & kMagnitude, scale) & 0x7Fu) | sign);
  }
  return amax;
}

template <class Format>
inline void cast_run(const float* in, std::uint8_t* codes, std::int64_t count, float scale) {
  cast_and_measure<Format>(in, codes, count, scale);  // what nobody reads is not computed
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

/// Microscaling blocks: a length that the compiler knows makes a run straight-line code.
constexpr std::int64_t kShortRun = 32;

/// Calls work(k, first element, length) for each run; the length is a constant wherever it is kShortRun.
template <class Work>
inline void for_each_run_of(std::int64_t count, std::int64_t run, const Work& work) {
  const std::int64_t whole = count / run;
  if (run == kShortRun) {
    for (std::int64_t k = 0; k < whole; ++k) work(k, k * kShortRun, kShortRun);
  } else {
    for (std::int64_t k = 0; k < whole; ++k) work(k, k * run, run);
  }
  if (whole * run < count) work(whole, whole * run, count - whole * run);
}

template <class Element>
void amax_runs(const Element* in, std::int64_t count, std::int64_t run, std::uint32_t* magnitudes) {
  for_each_run_of(count, run, [&](std::int64_t k, std::int64_t first, std::int64_t length) {
    const auto amax = static_cast<std::uint32_t>(amax_run(in + first, length));
    magnitudes[k] = magnitudes[k] < amax ? amax : magnitudes[k];
  });
}

template <class Format, class Element>
std::uint32_t cast_runs(const CastRuns<Element>& runs) {
  if (runs.count <= runs.run)
    return static_cast<std::uint32_t>(cast_and_measure<Format>(runs.in, runs.codes, runs.count, runs.scales[0]));
  for_each_run_of(runs.count, runs.run, [&](std::int64_t k, std::int64_t first, std::int64_t length) {
    cast_run<Format>(runs.in + first, runs.codes + first, length, runs.scales[k]);
  });
  return 0;
}

/// Four rows at a time as 64-bit words of four columns: two rounds of exchanging halves transpose a 4 x 4 square.
void transpose_16bit(const std::uint16_t* in, std::int64_t in_stride, std::int64_t rows, std::int64_t cols,
                     std::uint16_t* out) {
  constexpr std::uint64_t kEven = 0x0000FFFF0000FFFFu;
  constexpr std::uint64_t kLow = 0x00000000FFFFFFFFu;
  constexpr std::int64_t kBatch = 16;
  const std::int64_t squares = cols / 4;
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const std::uint16_t* from = in + row * in_stride;
    std::uint16_t* to = out + row;
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
          std::memcpy(to + (4 * (square + i) + k) * rows, &columns[k][i], sizeof(std::uint64_t));
    }
    for (std::int64_t col = 4 * squares; col < cols; ++col)
      for (int k = 0; k < 4; ++k) to[col * rows + k] = from[k * in_stride + col];
  }
  for (; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) out[col * rows + row] = in[row * in_stride + col];
}

constexpr QuantizeLoops make_quantize_loops(std::string_view name,
                                            void (*stream)(const std::uint8_t*, std::uint8_t*, std::int64_t)) {
  return {.name = name,
          .amax_bf16 = amax_runs<std::uint16_t>,
          .amax_f32 = amax_runs<float>,
          .cast_bf16_e4m3 = cast_runs<E4M3, std::uint16_t>,
          .cast_bf16_e5m2 = cast_runs<E5M2, std::uint16_t>,
          .cast_f32_e4m3 = cast_runs<E4M3, float>,
          .cast_f32_e5m2 = cast_runs<E5M2, float>,
          .transpose = transpose_16bit,
          .stream = stream};
}

}  // namespace
}  // namespace fp8lab::cpu
