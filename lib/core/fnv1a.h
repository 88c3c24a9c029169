#pragma once

#include <cstdint>
#include <string_view>

// 64-bit FNV-1a, for hashes that must be equal on every platform and in every run, which std::hash does not promise. It
// is not cryptographic: texts with equal hashes can be constructed.
namespace fp8lab {

inline constexpr std::uint64_t kFnv1aBasis = 0xcbf29ce484222325ULL;
inline constexpr std::uint64_t kFnv1aPrime = 0x100000001b3ULL;

/// Hash of the bytes of `text`, continued from `hash`.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = kFnv1aBasis) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kFnv1aPrime;
  return hash;
}

/// One step over a 64-bit word instead of a byte. The shift moves high bits down, which a product never does.
/// Every step is invertible, so two different words always give two different hashes.
constexpr std::uint64_t fnv1a_word(std::uint64_t word, std::uint64_t hash = kFnv1aBasis) {
  hash = (hash ^ word) * kFnv1aPrime;
  return hash ^ (hash >> 32);
}

}  // namespace fp8lab
