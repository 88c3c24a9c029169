#pragma once

#include <cstdint>
#include <string_view>

// FNV-1a with 64 bits, the project's one hash where the same number is needed on every platform and in every run, which
// std::hash does not promise. It is no defence against somebody who wants two texts to hash alike.
namespace fp8lab {

inline constexpr std::uint64_t kFnv1aBasis = 0xcbf29ce484222325ULL;
inline constexpr std::uint64_t kFnv1aPrime = 0x100000001b3ULL;

/// Of the bytes of `text`, continued from `hash`.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = kFnv1aBasis) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kFnv1aPrime;
  return hash;
}

/// A step over a word instead of a byte. The shift moves high bits down, which the product alone never does. Every step
/// can be undone, so two words always give two hashes.
constexpr std::uint64_t fnv1a_word(std::uint64_t word, std::uint64_t hash = kFnv1aBasis) {
  hash = (hash ^ word) * kFnv1aPrime;
  return hash ^ (hash >> 32);
}

}  // namespace fp8lab
