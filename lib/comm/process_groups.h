#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/run.h"

namespace fp8lab {

/// A way to have ranks.
struct ProcessGroupRow {
  std::string_view name;
  std::string_view title;
  /// Empty when ranks can be had here, otherwise why not.
  std::string (*unavailable_reason)();
  RunRanks run;
};

/// The table of process groups; adding one is one folder and one row.
std::span<const ProcessGroupRow> process_groups();
/// Throws Error listing the known ones.
const ProcessGroupRow& process_group_row(std::string_view name);

/// Runs `rank_function` once for every rank that lives in this process, with its membership of the group of all ranks,
/// and returns when all of them, in other processes too, have returned.
///
/// Throws when the row is unknown or unavailable, or when a rank failed: the first cause alone, as OutOfMemory if it
/// was one, else as Error, with the rank in front of its message. The other ranks' pending and later collectives throw
/// GroupAborted, which they should let through. A thread that neither returns nor issues a collective cannot be ended
/// from here; the others are reported after the timeout, but the run returns with the last of them.
void run_ranks(std::string_view row, const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab
