#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fp8lab {

/// Tokens of a text, a byte each.
using TextTokens = std::span<const std::uint8_t>;

/// Tokens of a batch and the tokens that follow them. Token (position p, sequence s) is element p * sequences + s.
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

/// Sequences [first, first + count) among all that a run reads, in its own order.
struct SequenceRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Windows of `text` at random places. Sequence i is a function of (seed, i) only, so that ranks and micro-batches
/// that divide the sequences of a step among them read what one rank would. `text` has more than `seq` tokens.
TokenBatch random_windows(TextTokens text, std::int64_t seq, std::uint64_t seed, const SequenceRange& sequences);

/// Windows of `text` at even distances: sequence i of `total` begins at i / (total - 1) of the way from the first place
/// to the last, rounded down.
TokenBatch spread_windows(TextTokens text, std::int64_t seq, std::int64_t total, const SequenceRange& sequences);

/// A stream of random numbers.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
};

/// Uniform tokens below `vocabulary`, of which each is the target of the one before it. Each is a function of the
/// stream, its sequence and its position.
TokenBatch random_tokens(std::int64_t vocabulary, std::int64_t seq, const RandomStream& stream,
                         const SequenceRange& sequences);

}  // namespace fp8lab
