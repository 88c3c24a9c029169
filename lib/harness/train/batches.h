#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "autograd/runtime.h"
#include "autograd/sequence_split.h"
#include "harness/cell/cell.h"
#include "harness/data/text_data.h"
#include "harness/data/token_batch.h"
#include "harness/train/teacher.h"

namespace fp8lab {

/// The inputs of one forward pass of one rank.
struct Batch {
  /// [seq * batch, hidden] in the type of the activations, or a language model's tokens, i32 [seq * batch]; token =
  /// position * batch + sequence.
  Tensor x;
  Tensor target;  ///< same shape and type; absent if the loss has none
};

/// Makes the batches of one rank. A batch for training is a function of the cell's seed, the step and the global index
/// of its tokens, so that ranks and micro-batches divide the tokens of a step among them; one for validation is the
/// same in every step. Ranks that split sequences between them read the same ones, each its own chunks. Each method
/// sets the runtime's row offset to the batch's first token, which dropout masks depend on too.
class Batches {
 public:
  /// `cell` and `runtime` must outlive this object. `rank`: of the cell's ranks, 0 if nothing is sharded. `joined`:
  /// a batch has the sequences of this number of consecutive batches of a cell whose `batch` is smaller by this factor,
  /// in their order, so that one rank reads in one pass what ranks and micro-batches divide among them.
  /// Throws Error if the cell reads a corpus that cannot be read or does not fit its model.
  Batches(const CellConfig& cell, Runtime& runtime, int rank, std::int64_t joined = 1);

  /// The batch of micro-batch `index` of the runtime's step.
  Batch training(std::int64_t index);
  /// Batch `index` for validation.
  Batch validation(std::int64_t index);

 private:
  /// What a batch is for: its inputs' names, and the step of which its values are a function.
  struct Use {
    std::string_view x, target;
    std::int64_t step = 0;
    bool validates = false;
  };
  Batch make(const Use& use, std::int64_t first_sequence);
  Tensor make_activations(std::string_view name, std::int64_t step);
  Tensor make_target(const Use& use, const Tensor& x);
  /// Fills `tensor`, of `sequences` sequences, from the random numbers of the rows from `first_row` on.
  void fill_activations(Tensor& tensor, const RandomStream& stream, std::int64_t first_row, std::int64_t sequences,
                        bool is_target);
  TokenBatch read_tokens(const Use& use, std::int64_t first_sequence) const;

  const CellConfig& cell_;
  Runtime& runtime_;
  int reader_;   ///< number of this rank among those that read other sequences
  int readers_;  ///< how many those are
  std::int64_t joined_;
  SequenceSplit split_;
  std::optional<Teacher> teacher_;        ///< nothing if the cell has none, or the device computes nothing
  std::shared_ptr<const TextData> text_;  ///< null if the cell reads none, or the device computes nothing
};

}  // namespace fp8lab
