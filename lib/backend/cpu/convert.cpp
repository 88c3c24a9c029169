#include "backend/cpu/convert.h"

#include "backend/cpu/vectorized.h"
#include "core/float8.h"

// These loops have no branches, so that compilers vectorise them.
namespace fp8lab::cpu {
namespace {

// Signed, because SSE2 has no unsigned comparison; fields and magnitudes leave the sign bit clear.
constexpr std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
constexpr float float_of(std::int32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr std::int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000, kQuietNan = 0x7FC00000;

void bf16_to_f32(const std::uint16_t* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = float_of(static_cast<std::int32_t>(std::uint32_t{in[i]} << 16));
}

template <class Format>
void float8_to_f32(const std::uint8_t* in, std::int64_t count, float* out) {
  constexpr int kShift = 23 - Format::kMantissaBits;
  constexpr std::int32_t kRebias = (127 - Format::kBias) << 23;
  constexpr std::int32_t kFirstNormal = 1 << Format::kMantissaBits;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t fields = in[i] & 0x7F;
    const std::int32_t subnormal = fields < kFirstNormal ? -1 : 0;
    // A subnormal read with an implicit leading one is too large by exactly the smallest normal.
    const float with_leading_one = float_of((fields << kShift) + kRebias + (subnormal & (1 << 23)));
    const std::int32_t finite = bits_of(with_leading_one - float_of(subnormal & bits_of(Format::kMinNormal)));
    const bool infinite = Format::kHasInfinity && fields == Format::kMaxCode + 1;
    const std::int32_t special = fields > Format::kMaxCode ? (infinite ? kInfinity : kQuietNan) : 0;
    out[i] = float_of(finite | special | static_cast<std::int32_t>(std::uint32_t{in[i] & 0x80u} << 24));
  }
}

/// UBSan leaves the check of `out` to the processor: an arm that lacks a fix may store to null, and scenarios expect
/// its SIGSEGV.
__attribute__((no_sanitize("null"))) void f32_to_bf16(const float* in, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint32_t>(bits_of(in[i]));
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = ((bits >> 16) & 0x8000u) | (static_cast<std::uint32_t>(kQuietNan) >> 16);
    out[i] = static_cast<std::uint16_t>((bits_of(in[i]) & kMagnitude) > kInfinity ? nan : rounded);
  }
}

}  // namespace

void load_bf16(const std::uint16_t* in, std::int64_t count, float* out) {
  vectorized([=] { bf16_to_f32(in, count, out); });
}
void load_e4m3(const std::uint8_t* in, std::int64_t count, float* out) {
  vectorized([=] { float8_to_f32<E4M3>(in, count, out); });
}
void load_e5m2(const std::uint8_t* in, std::int64_t count, float* out) {
  vectorized([=] { float8_to_f32<E5M2>(in, count, out); });
}
void store_bf16(const float* in, std::int64_t count, std::uint16_t* out) {
  vectorized([=] { f32_to_bf16(in, count, out); });
}

}  // namespace fp8lab::cpu
