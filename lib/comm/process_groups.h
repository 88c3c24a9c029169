#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/run.h"

namespace fp8lab {

/// One kind of process group.
struct ProcessGroupRow {
  std::string_view name;
  std::string_view title;
  /// Empty if such ranks are available here, otherwise the reason why not.
  std::string (*unavailable_reason)();
  RunRanks run;
};

/// The table of process groups. To add one, add a folder and a row.
std::span<const ProcessGroupRow> process_groups();
/// The row called `name`. Throws Error listing the known names if there is none.
const ProcessGroupRow& process_group_row(std::string_view name);

/// Runs `rank_function` once for every rank that lives in this process, with its membership of the group of all ranks.
/// Returns when all of them, in other processes too, have returned.
///
/// Throws if the row is unknown or unavailable, or if a rank failed. The exception is only the first cause, as
/// OutOfMemory if it was one, else as Error, with the rank in front of its message. Pending and later collectives of
/// the other ranks throw GroupAborted, which `rank_function` should let through. A thread that neither returns nor
/// issues a collective cannot be ended: the others report it after the timeout, but the run returns only when that
/// thread does.
void run_ranks(std::string_view row, const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab
