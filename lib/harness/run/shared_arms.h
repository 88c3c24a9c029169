#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/scenario.h"

namespace fp8lab {

/// Names the work of an arm: arms with equal names would measure the same. An empty name is never shared.
using TaskFunction = std::function<std::string(const CellConfig&, Arm)>;

/// The arm and its cell as text, without the parts that do not affect the measurement: names, the fix if it is in
/// place, and quantization in the BF16 arm. Empty for cells that measure time, because each cell should measure its
/// arms together.
std::string task_of(CellConfig cell, Arm arm);

/// Results of arms that several cells share. Only results of status ok are shared: an arm that failed may succeed in
/// the next cell, which may have another time limit. At most kMostKept results are kept; a cell whose result was
/// dropped runs the arm again. A "task" is the name of an arm's work.
class SharedArms {
 public:
  static constexpr std::size_t kMostKept = 256;

  /// Counts the arms of `cells`. Each of them must be begun or taken once, except in cells that are skipped.
  SharedArms(TaskFunction task, const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary);

  std::string task(const CellConfig& cell, Arm arm) const { return task_ ? task_(cell, arm) : std::string(); }
  /// A cell starts to run the task itself.
  void begin(const std::string& task);
  /// The task that cell `id` began has ended with `result`.
  void finish(const std::string& task, const ArmResult& result, const std::string& id);
  /// True if the task is running, so that another cell should wait for its result.
  bool underway(const std::string& task) const;
  /// The result of the task if it is known and took no longer than the asking cell's limit;
  /// ArmResult::measured_in names the cell that measured it.
  std::optional<ArmResult> take(const std::string& task, double limit_s);

 private:
  struct Task {
    int askers = 0;  ///< cells that have neither begun nor taken it
    bool underway = false;
    bool failed = false;  ///< it failed once, so every cell runs it itself, possibly at the same time
    std::optional<ArmResult> result;
  };
  /// Two hashes of a task's name, instead of the name, because names are long and tasks are many. A collision of 128
  /// bits is not expected.
  using Key = std::pair<std::size_t, std::uint64_t>;
  static Key key(const std::string& task);
  void keep(const Key& key, Task& task, const ArmResult& result, const std::string& id);

  TaskFunction task_;
  std::map<Key, Task> tasks_;  ///< tasks that run, or that a cell has yet to begin or to take
  std::deque<Key> kept_;       ///< keys of results, oldest first; some of the results are already dropped
  std::size_t results_ = 0;    ///< number of results that are kept
};

}  // namespace fp8lab
