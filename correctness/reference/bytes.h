#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace fp8lab::reference {

/// True if both have the same bytes; std::equal would compare one byte at a time.
inline bool same_bytes(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

/// True if every byte is `value`.
inline bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() || (bytes.front() == value && same_bytes(bytes.first(bytes.size() - 1), bytes.subspan(1)));
}

/// The index of the first byte that differs; the length if none does. Both have one length.
inline std::size_t first_difference(std::span<const std::byte> left, std::span<const std::byte> right) {
  if (same_bytes(left, right)) return left.size();
  return static_cast<std::size_t>(std::mismatch(left.begin(), left.end(), right.begin()).first - left.begin());
}

}  // namespace fp8lab::reference
