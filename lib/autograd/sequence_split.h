#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/process_group.h"

namespace fp8lab {

/// Tokens [begin, begin + length) of a rank's part of a sequence are those from `position` on of the sequence.
struct SequenceChunk {
  std::int64_t begin = 0;
  std::int64_t position = 0;
  std::int64_t length = 0;
};

/// Context parallelism: which tokens of every sequence a rank computes. A sequence is cut into 2 * ranks chunks of one
/// length; rank r has chunk r and then chunk 2 * ranks - 1 - r, as in Megatron and Transformer Engine. Under a causal
/// mask early tokens see few keys and late tokens see many, so that ranks with such pairs have equally much work. A
/// single rank has the sequence as one chunk.
class SequenceSplit {
 public:
  /// `seq`: tokens of a sequence on this rank; an even number if there are several ranks. `ranks`: null for one rank.
  SequenceSplit(const ProcessGroup* ranks, std::int64_t seq) {
    if (ranks == nullptr || ranks->size() == 1) {
      chunks_[0].length = seq;
      return;
    }
    const std::int64_t length = seq / 2, rank = ranks->rank(), last = 2 * ranks->size() - 1;
    chunks_ = {SequenceChunk{.begin = 0, .position = rank * length, .length = length},
               SequenceChunk{.begin = length, .position = (last - rank) * length, .length = length}};
    count_ = 2;
  }

  /// In the order of the rank's tokens, which is the order of positions.
  std::span<const SequenceChunk> chunks() const { return std::span(chunks_).first(count_); }

 private:
  std::array<SequenceChunk, 2> chunks_{};
  std::size_t count_ = 1;
};

}  // namespace fp8lab
