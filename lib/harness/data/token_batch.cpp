#include "harness/data/token_batch.h"

#include <algorithm>

#include "core/counter_rng.h"
#include "core/fnv1a.h"

namespace fp8lab {
namespace {

/// A number below `limit`, which is at most 2^32, from 32 random bits.
std::int64_t below(std::int64_t limit, std::uint32_t bits) {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(bits) * static_cast<std::uint64_t>(limit)) >> 32);
}

/// The places at which a window may begin: the token after its last one is a target.
std::int64_t places(TextTokens text, std::int64_t seq) { return static_cast<std::int64_t>(text.size()) - seq; }

/// `sequence_of(i)`: sequence i as a function of the position, which is below or, for the last target, at `seq`.
template <class SequenceOf>
TokenBatch make_batch(std::int64_t seq, const SequenceRange& sequences, const SequenceOf& sequence_of) {
  const auto tokens = static_cast<std::size_t>(seq * sequences.count);
  TokenBatch batch{.tokens = std::vector<std::int32_t>(tokens), .targets = std::vector<std::int32_t>(tokens)};
  for (std::int64_t s = 0; s < sequences.count; ++s) {
    const auto token_at = sequence_of(sequences.first + s);
    for (std::int64_t p = 0; p < seq; ++p) {
      const auto at = static_cast<std::size_t>(p * sequences.count + s);
      batch.tokens[at] = token_at(p);
      batch.targets[at] = token_at(p + 1);
    }
  }
  return batch;
}

auto window_from(TextTokens text, std::int64_t begin) {
  return [window = text.subspan(static_cast<std::size_t>(begin))](std::int64_t position) {
    return std::int32_t{window[static_cast<std::size_t>(position)]};
  };
}

}  // namespace

TokenBatch random_windows(TextTokens text, std::int64_t seq, std::uint64_t seed, const SequenceRange& sequences) {
  const CounterRng rng(seed, fnv1a("windows of text"));
  return make_batch(seq, sequences, [&](std::int64_t sequence) {
    return window_from(text, below(places(text, seq), rng.bits(static_cast<std::uint64_t>(sequence))));
  });
}

TokenBatch spread_windows(TextTokens text, std::int64_t seq, std::int64_t total, const SequenceRange& sequences) {
  const std::int64_t last = places(text, seq) - 1, gaps = std::max<std::int64_t>(1, total - 1);
  return make_batch(seq, sequences, [&](std::int64_t sequence) {
    return window_from(text, last / gaps * sequence + last % gaps * sequence / gaps);  // last * sequence may overflow
  });
}

TokenBatch random_tokens(std::int64_t vocabulary, std::int64_t seq, const RandomStream& stream,
                         const SequenceRange& sequences) {
  const CounterRng rng(stream.seed, stream.stream);
  return make_batch(seq, sequences, [&](std::int64_t sequence) {
    return [&, first = sequence * (seq + 1)](std::int64_t position) {
      return static_cast<std::int32_t>(below(vocabulary, rng.bits(static_cast<std::uint64_t>(first + position))));
    };
  });
}

}  // namespace fp8lab
