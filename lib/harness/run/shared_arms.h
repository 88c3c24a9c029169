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

/// Names what an arm does: arms of one name would measure the same. That of an empty name is like no other.
using TaskFunction = std::function<std::string(const CellConfig&, Arm)>;

/// The arm itself, less what its process does not see of the cell: names, the fix where it is in place, quantization
/// where the arm has none. Empty for what is measured by the clock, which every cell wants measured beside its own
/// other arms.
std::string task_of(CellConfig cell, Arm arm);

/// Results that several cells ask for, from the first of them on to the last. Only good ones are handed on: what went
/// wrong may go well for the next, or its own limit of time may be another. kMostKept results are kept at most; who
/// asks for one that had to go runs the arm.
class SharedArms {
 public:
  static constexpr std::size_t kMostKept = 256;

  /// Of the arms of `cells`, each of which will be begun or taken, except in cells that are skipped.
  SharedArms(TaskFunction task, const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary);

  std::string task(const CellConfig& cell, Arm arm) const { return task_ ? task_(cell, arm) : std::string(); }
  /// Its asker runs it itself.
  void begin(const std::string& task);
  /// What came of that in cell `id`.
  void finish(const std::string& task, const ArmResult& result, const std::string& id);
  /// Whether waiting for it may spare running it.
  bool underway(const std::string& task) const;
  /// A good result if there is one, which says in which cell it was measured.
  std::optional<ArmResult> take(const std::string& task);

 private:
  struct Task {
    int askers = 0;  ///< that have neither begun it nor taken it
    bool underway = false;
    bool failed = false;  ///< then everybody runs it, at the same time if need be
    std::optional<ArmResult> result;
  };
  /// Two hashes of a task's name. Names are long and tasks are many; that two names agree in 128 bits does not happen.
  using Key = std::pair<std::size_t, std::uint64_t>;
  static Key key(const std::string& task);
  void keep(const Key& key, Task& task, const ArmResult& result, const std::string& id);

  TaskFunction task_;
  std::map<Key, Task> tasks_;  ///< that someone has yet to begin or to take, or that are underway
  std::deque<Key> kept_;       ///< results in the order in which they came; some are gone by now
  std::size_t results_ = 0;    ///< that are kept
};

}  // namespace fp8lab
