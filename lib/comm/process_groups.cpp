#include "comm/process_groups.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <string>

#include "comm/in_process/in_process.h"
#include "comm/mpi/mpi_ranks.h"
#include "comm/nccl/nccl_ranks.h"
#include "comm/simulated/simulated.h"
#include "comm/sockets/sockets.h"
#include "core/check.h"
#include "core/row_by_name.h"

namespace fp8lab {
namespace {

const std::array kProcessGroups = {
    ProcessGroupRow{"in_process", "every rank a thread of this process", in_process_unavailable_reason, run_in_process},
    ProcessGroupRow{"mpi", "every rank a process, started by mpirun or srun", mpi_unavailable_reason, run_mpi},
    ProcessGroupRow{"sockets", "every rank a process of this host, started by torchrun or srun",
                    sockets_unavailable_reason, run_sockets},
    ProcessGroupRow{"nccl", "ranks of another row, each with a GPU of its own, between which NCCL moves bytes",
                    nccl_unavailable_reason, run_nccl},
    ProcessGroupRow{"simulated", "a single rank: collectives check and count, and move nothing",
                    simulated_unavailable_reason, run_simulated},
};

// Keeps deadlines from overflowing.
constexpr std::chrono::hours kLongestTimeout(365 * 24);

}  // namespace

std::span<const ProcessGroupRow> process_groups() { return kProcessGroups; }

const ProcessGroupRow& process_group_row(std::string_view name) {
  return row_by_name(kProcessGroups, "process group", name);
}

void run_ranks(std::string_view row_name, const RunOptions& options, const RankFunction& rank_function) {
  const ProcessGroupRow& row = process_group_row(row_name);
  if (const std::string reason = row.unavailable_reason(); !reason.empty())
    fail(fmt::format("process group '{}' is unavailable: {}", row.name, reason));
  if (options.ranks < 1) fail(fmt::format("a run of {} ranks: there must be at least one", options.ranks));
  if (options.timeout.count() <= 0 || options.timeout > kLongestTimeout)
    fail("the timeout of a run of ranks lies above 0 and within a year");
  row.run(options, rank_function);
}

}  // namespace fp8lab
