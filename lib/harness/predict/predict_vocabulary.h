#pragma once

#include <cstdint>

#include "harness/cell/cell.h"

namespace fp8lab {

/// The vocabulary of a language model around the layers of a cell.
struct VocabularySize {
  std::int64_t tokens = 0;  ///< distinct tokens; 0: no embedding, no head
  bool tied = false;        ///< the head is the embedding's matrix
  friend bool operator==(const VocabularySize&, const VocabularySize&) = default;
};

/// Bytes that embedding, head and loss add to a training run on rank 0. No run of this program has them, so these are
/// sums over the configuration, and no test compares them with an allocator.
struct VocabularyBytes {
  /// From the first step to the last: shards of both matrices in the parameters' type, their gradients, and the
  /// optimizer's moments and masters.
  double standing = 0;
  /// More between the head's forward and its backward: the gathered head and its unsharded gradient, and for each token
  /// the logits in 16 bits, their copy in FP32 that the loss reads, and their gradient in 16 bits.
  double at_loss = 0;
};

/// Matrices are [tokens, hidden], sharded by rows like every parameter, and not quantized.
VocabularyBytes vocabulary_bytes(const CellConfig& cell, const VocabularySize& vocabulary);

}  // namespace fp8lab
