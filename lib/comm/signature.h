#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8lab {

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kSplit,
  kAttach,
  kRingExchange,
  kAllToAll
};
inline constexpr std::size_t kCollectiveKinds = 9;

constexpr std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kSplit: return "split";
    case CollectiveKind::kAttach: return "attach";
    case CollectiveKind::kRingExchange: return "ring_exchange";
    case CollectiveKind::kAllToAll: return "all_to_all";
  }
  return "?";
}

enum class ReduceOp : std::uint8_t { kSum, kMax };

constexpr std::string_view name(ReduceOp op) { return op == ReduceOp::kSum ? "sum" : "max"; }

/// What the ranks of a group must agree on in a collective. Plain bytes, so that it can be sent as it is.
struct Signature {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;   ///< root of a broadcast
  std::int32_t shift = 0;  ///< shift of a ring exchange: rank r sends to rank (r + shift) mod size
  std::int64_t parts = 0;
  std::int64_t bytes = 0;      ///< bytes of the full arrays
  std::uint64_t sequence = 0;  ///< number of the collective in its group, from 1
  /// Hash of the full label and of every part's offsets, type and content, in order.
  std::uint64_t digest = 0x243F6A8885A308D3ull;
  std::array<char, 80> label{};  ///< truncated, zero-terminated

  /// Adds a further fact to the digest.
  void mix(std::uint64_t fact) {
    digest = (digest ^ fact) * 0x9E3779B97F4A7C15ull;
    digest ^= digest >> 32;
  }
  void set_label(std::string_view text);

  bool operator==(const Signature&) const = default;
};

/// "all_gather 'layers.3' (#17: 4 parts, 1024 bytes)"
std::string describe(const Signature& call);
/// The error of ranks `a` and `b` of `group` that made different calls.
std::string describe_mismatch(std::string_view group, int a, const Signature& call_a, int b, const Signature& call_b);

}  // namespace fp8lab
