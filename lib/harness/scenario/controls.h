#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/scenario.h"

namespace fp8lab {

/// Cells that test the measurement itself, made from the cells of a run: for each scenario, from its first cell that
/// runs and is not expected to crash, one whose arms are equal (`control: same`), which must show no difference, and
/// one whose before arm has a byte, a collective and 5 % of the step's time more (`control: planted`), all of which
/// must show. Which of these a cell gates depends on what the scenario measures; it gates time only if `gates_time`, or
/// if the cell gates time itself, since that takes many processes.
std::vector<PlannedCell> control_cells(const std::vector<PlannedCell>& cells, bool gates_time);
/// True for the id of a control cell.
bool is_control(std::string_view id);

/// How the control cells of a run came out.
struct ControlCounts {
  enum class Outcome { kGood, kUndecided, kWrong };
  struct Outcomes {
    int good = 0, undecided = 0, wrong = 0;
  };
  Outcomes same, planted;

  /// Counts the cell `id`, if it is a control cell.
  void add(std::string_view id, Outcome outcome);
  /// "controls: equal pairs: 3, false alarms: 0, undecided: 1; planted changes: 3, missed: 0, undecided: 0"; empty
  /// without control cells.
  std::string text() const;
};

}  // namespace fp8lab
