#pragma once

#include <cstddef>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "behavior/behaviors.h"
#include "core/check.h"
#include "optim/saved_state.h"
#include "optim/saved_state_format.h"

// The meaning of the entries of saved state: the tensors of a training state by name, and the rows that each rank has.
namespace fp8lab {

/// One tensor of a training state. Tensors of a parameter are named "<parameter>: <what>", tensors of a recipe
/// "<module> <forward or backward>: <what>".
struct SavedItem {
  static constexpr std::size_t kNoParameter = std::numeric_limits<std::size_t>::max();
  enum class Kind {
    kRows,        ///< rows of the parameter along dim 0, which can be cut again
    kMoment,      ///< rows of a moment with a scale, in units of `scale`
    kScale,       ///< scale of a moment
    kRowwise,     ///< eight bits: row-wise data and scales, which belong to their shard
    kTransposed,  ///< the same of the column-wise orientation, which not every architecture has
    kRecipe,      ///< an amax history, or its scales; or the biases of a router
    /// Reverted keep_type_in_moves: an FP8 weight as values of its nominal type. No tensor of the model has
    /// these values, so `tensor` is absent.
    kDequantized,
  };
  std::string name;
  Kind kind = Kind::kRows;
  std::size_t parameter = kNoParameter;
  Tensor tensor;
  Tensor scale{};  ///< scale of a kMoment
  /// Reverted shard_saved_state: a shard described as a tensor of its own, of which every rank is taken to have a copy.
  bool replicated = false;
  std::string roles{};  ///< roles of a kRecipe, as in SavedEntry
};
std::vector<SavedItem> saved_items(const Runtime& runtime, const TrainingState& state);
/// The type of an item's elements in the files.
DType dtype_of(const SavedItem& item, const TrainingState& state);

/// The rows of every parameter that each rank has.
class RowCuts {
 public:
  /// Collective. Throws Error if the shards of a parameter do not make up the unsharded parameter.
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

/// The rank that writes each of `items` that is replicated; for other items 0. The answer is the same on every rank.
std::vector<int> writers_of_replicated(const std::vector<SavedItem>& items, const TrainingState& state,
                                       const RowCuts& cuts);

/// The same ranks for buffers in host memory, for agreement about saved state; null stays null.
inline ProcessGroup* on_host(ProcessGroup* group) { return group == nullptr ? nullptr : &group->host(); }

/// Collective. Throws on every rank if some rank has a `problem`: on that rank the problem itself, on the others
/// OutOfMemory if it is one, else Error, with the number of that rank and its message, whose end is cut if it is long.
void fail_on_every_rank(ProcessGroup* group, const std::exception_ptr& problem, std::string_view doing);
/// The exception that `work` throws, or null.
template <class Work>
std::exception_ptr problem_of(const Work& work) {
  try {
    work();
  } catch (...) {  // want of host memory too: the other ranks are in a collective
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace fp8lab
