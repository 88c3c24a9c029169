#pragma once

#include <map>
#include <optional>
#include <string>

#include "behavior/behaviors.h"
#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "recipe/recipe.h"

// The behaviours and the recipe of a cell's arm, and the function that records its metrics.
namespace fp8lab {

/// The behaviours of an arm: all fixes in place, except that `before` reverts the cell's fix.
Behaviors behaviors_of(const CellConfig& cell, Arm arm);
/// The recipe of an arm: the cell's, or `bf16` for the arm of that name.
Recipe recipe_of(const CellConfig& cell, Arm arm);

/// True on the last rank, which is in the last replica, if the arm has planted faults: a control cell's before arm.
/// What this rank reports of its values is changed there, so that figures over ranks show it. `world`: null for one
/// rank.
bool plants_on(const CellConfig& cell, Arm arm, const ProcessGroup* world);

/// The cell without what its BF16 arm ignores: names, the fix, and quantization. Cells that differ only in these have
/// the same BF16 arm.
CellConfig as_bf16(CellConfig cell);

/// The cell without what the arm ignores: as_bf16() for the BF16 arm; otherwise without the fix and the control, which
/// only change the before arm.
CellConfig as_run(const CellConfig& cell, Arm arm);

/// Puts a figure, or the reason why there is none, into `metrics`, in the unit of the metric table.
void put(std::map<std::string, MetricValue>& metrics, const std::string& name, std::optional<double> value,
         std::string reason = {});

}  // namespace fp8lab
