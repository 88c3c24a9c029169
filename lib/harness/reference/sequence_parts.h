#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/reference/matrix.h"

// Ranks that split every sequence between them. Of 2 N equal chunks of a sequence rank r of N has chunks r and
// 2 N - 1 - r.
namespace fp8lab::reference_step {

/// Positions in a sequence of the tokens of part `part` of `parts`, in the order in which the rank has them.
std::vector<std::int64_t> positions(std::int64_t seq, int part, int parts);

/// The parts of the sequences that a rank has, and how it learns the others.
struct SequenceParts {
  int part = 0;
  int parts = 1;
  /// The values of every part in the order of parts, each as long as these. Collective over these ranks.
  std::function<std::vector<double>(const std::vector<double>&)> gather{};
};

/// The rows of all tokens in order of position, of what each rank has of its own tokens. Row position * batch +
/// sequence. Collective over the ranks of `of`.
Matrix entire_sequences(const SequenceParts& of, const Matrix& own, std::int64_t batch);
/// The rows of this rank's tokens.
Matrix own_part(const SequenceParts& of, const Matrix& entire, std::int64_t batch);

}  // namespace fp8lab::reference_step
