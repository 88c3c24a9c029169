#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/cli/plan/model_file.h"
#include "harness/cli/plan/planned.h"
#include "harness/results/json_codec.h"

// What `fp8lab plan OUT` reads of a result set.
namespace fp8lab {

/// The results that `paths` name, a directory with a results.json or that file; nothing if they name scenarios. Throws
/// Error for results among other paths, and for a file that no run has written.
std::optional<StoredRun> run_in(const std::vector<std::string>& paths);

/// True for the results of `fp8lab watch`.
bool is_watched(const StoredRun& run);
/// The model.json next to these results.
std::string model_file_of(const std::string& results);
/// The request for the model of a watched program: keys and ranks as it has them, unless `asked` has others; by default
/// PyTorch's figures in bf16. Throws Error if neither the program nor `asked` names a model.
PlanRequest request_of(const PlanRequest& asked, const CellRecord& record, const WatchedModel& model);
/// What was measured, how far the figures over the same ranks are from it, and what is planned otherwise.
std::string watched_text(const CellRecord& record, const WatchedModel& model, const std::vector<Planned>& plans);

/// The cells of a run, without their expectations, which results do not contain.
std::vector<PlannedCell> cells_of(const StoredRun& run);
/// Adds the figures of the run to the arms of its cells.
void add_measured(const StoredRun& run, Planned& plan);
/// As above, if `plan` has the keys and the ranks of the watched program and is, as that, for a host or for a GPU.
void add_measured(const CellRecord& record, const PlanRequest& asked, Planned& plan);

}  // namespace fp8lab
