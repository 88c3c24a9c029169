#pragma once

#include <cstdint>
#include <span>

#include "backend/device.h"

namespace fp8lab {

/// A tensor i32 [number of tokens]. Throws Error for a token outside [0, vocabulary); operations on tokens rely on it.
Tensor make_tokens(Device& device, std::span<const std::int32_t> tokens, std::int64_t vocabulary, HolderId holder);

struct EmbeddingInputs {
  Tensor tokens;     ///< i32 [seq * batch], of make_tokens()
  Tensor table;      ///< [vocabulary, cols]
  Tensor positions;  ///< [seq, cols] or absent
  std::int64_t batch = 1;
  HolderId holder = 0;
  float scale = 1.0f;
};
/// [seq * batch, cols] of the table's type: the table's row of each token times `scale`, plus, if given, its position's
/// row.
Tensor embedding(Device& device, const EmbeddingInputs& inputs);
/// The same into `out`; `inputs.holder` is unused.
void embedding_into(Device& device, const EmbeddingInputs& inputs, const Tensor& out);

/// Rows of a gradient by the entry of a table that they belong to: the tokens, or, if these are absent, the positions
/// of `batch` sequences.
struct EmbeddingGradientInputs {
  Tensor grad_out;  ///< [seq * batch, cols]
  Tensor tokens;
  std::int64_t batch = 1;
  float scale = 1.0f;
};
/// Writes to `grad_table`, [entries, cols], the sum of the rows of each entry times `scale`, or adds it to what is
/// there. The same bits on every run.
void embedding_gradient_into(Device& device, const EmbeddingGradientInputs& inputs, const Tensor& grad_table,
                             bool accumulate);

}  // namespace fp8lab
