#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"
#include "optim/saved_state.h"
#include "optim/saved_state_format.h"

// What the entries of a checkpoint mean: the tensors of a training state by name, and the rows that ranks have of them.
namespace fp8lab {

/// One tensor of a training state. Those of a parameter are named "<parameter>: <what>".
struct CheckpointItem {
  static constexpr std::size_t kNoParameter = std::numeric_limits<std::size_t>::max();
  enum class Kind {
    kRows,        ///< rows of the parameter along dim 0, which a new cut may take apart
    kMoment,      ///< the same, in units of `scale`
    kScale,       ///< of a moment
    kRowwise,     ///< eight bits: data and scales that belong to their shard
    kTransposed,  ///< the same of a column-wise orientation, which not every architecture has
    kRecipe,      ///< an amax history or the scales of one
  };
  std::string name;
  Kind kind = Kind::kRows;
  std::size_t parameter = kNoParameter;
  Tensor tensor;
  Tensor scale{};  ///< of a kMoment
};
std::vector<CheckpointItem> checkpoint_items(const TrainingState& state);

/// Which rows of every parameter each rank has.
class RowCuts {
 public:
  /// Collective. Throws Error where the shards of a parameter do not make up the unsharded parameter.
  RowCuts(const TrainingState& state, ProcessGroup* group);

  int ranks() const { return ranks_; }
  std::int64_t first(std::size_t parameter, int rank) const { return firsts_[index(parameter, rank)]; }
  std::int64_t rows(std::size_t parameter, int rank) const { return rows_[index(parameter, rank)]; }

 private:
  std::size_t index(std::size_t parameter, int rank) const {
    return static_cast<std::size_t>(rank) * parameters_ + parameter;
  }

  std::size_t parameters_;
  int ranks_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> firsts_;
};

/// The same ranks for what lies in host memory, as all that a checkpoint agrees on does; null stays null.
inline ProcessGroup* on_host(ProcessGroup* group) { return group == nullptr ? nullptr : &group->host(); }

/// Throws Error on every rank if `problem` is not empty on one of them: there the problem, elsewhere whose it is.
void agree(ProcessGroup* group, const std::string& problem, std::string_view doing);
/// The message of the Error that `work` throws, or nothing.
template <class Work>
std::string problem_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace fp8lab
