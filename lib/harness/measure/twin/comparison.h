#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/measure/twin/findings.h"
#include "harness/measure/twin/plain_twin.h"

namespace fp8lab {

/// What all ranks computed in one step.
struct AllRanks {
  std::vector<Lists> outputs;    ///< by rank and micro-batch
  std::vector<Lists> gradients;  ///< by replica, of unsharded parameters
};
/// What all ranks computed, on every rank. `shapes`: of unsharded parameters. Collective.
AllRanks of_all_ranks_in_step(ProcessGroup* world, const CellConfig& cell, const RecordedStep& mine,
                              const std::vector<ElementRange>& own, const std::vector<Shape>& shapes);

/// Compares a cell with its twin on one rank.
class TwinComparison {
 public:
  TwinComparison(const CellConfig& cell, const PlainTwin& twin, const Recipe& recipe, TwinFindings& out);

  /// `exact`: the step without the recipe's roundings; null if bits must be equal.
  /// `noise_of_parts`: of each gradient, if its parts are known.
  void compare_step(std::int64_t step, const AllRanks& seen, const RecordedStep& twin, const RecordedStep* exact,
                    const Lists* noise_of_parts, const std::vector<std::string>& names,
                    const std::vector<Shape>& shapes);
  /// `seen`, `expected`: means over ranks. `exact`: the loss without the recipe's roundings, if known.
  void compare_loss(const std::string& what, double seen, double expected, double exact);
  /// Weights after the same number of steps; both unsharded and in 16 or 32 bits. In other orders of the sum that
  /// clips, an element in a thousand may be rounded to the other side.
  void compare_weights(const std::vector<std::string>& names, const Lists& seen, const Lists& twin);

 private:
  /// How far a mean over many terms is from a mean of terms with other roundings, relative to it.
  double loss_rounding() const { return quantized_ ? 0x1p-6 : in_f32_ ? 0x1p-16 : 0x1p-9; }
  /// Every part of the tokens that a rank has in a micro-batch.
  void compare_outputs(std::int64_t step, const AllRanks& seen, const RecordedStep& twin, const RecordedStep* exact);
  void compare_gradient(const std::string& what, const Shape& shape, const std::vector<float>& seen,
                        const std::vector<float>& twin, const std::vector<float>& exact,
                        const std::vector<float>* noise_of_parts);
  /// ", rows of rank 2": the shard that is farthest from the twin's.
  std::string rank_of(const Shape& shape, const std::vector<float>& seen, const std::vector<float>& twin) const;

  const CellConfig& cell_;
  const PlainTwin& twin_;
  bool quantized_;
  bool in_f32_;
  TwinFindings& out_;
};

}  // namespace fp8lab
