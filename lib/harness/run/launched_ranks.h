#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/launch.h"
#include "comm/run.h"
#include "harness/cell/cell.h"

namespace fp8lab {

/// The processes that mpirun, srun or torchrun started as the ranks of one run of this program. Rank 0 is the head:
/// only it judges and reports, and the other ranks follow its orders.
class LaunchedRanks {
 public:
  /// Reads the launch from environment variables; nothing if no launcher started several processes. Throws Error if the
  /// variables contradict each other or this build does not support the launch.
  static std::optional<LaunchedRanks> discover(const EnvironmentLookup& variable);

  int rank() const { return launch_.rank; }
  int size() const { return launch_.size; }
  int local_rank() const { return launch_.local_rank; }
  bool is_head() const { return launch_.rank == 0; }
  /// "4 ranks: mpirun launched the ranks"
  std::string describe() const;
  std::string launcher() const { return std::string(launch_.launcher); }

  /// Calls `rank_function` in every rank's process, as run_ranks() does. Ignores the ranks and the rendezvous in
  /// `options`. `on_gpus`: the ranks use GPUs, whose collectives run over NCCL if this build has it.
  void run(RunOptions options, const RankFunction& rank_function, bool on_gpus = false) const;

  /// An order of the head to the other ranks: run an arm of a cell; or, with cell -1, end with an exit code. `cell` is
  /// an index into the plan, `arm` a value of Arm.
  struct Order {
    std::int64_t cell = -1;
    std::int32_t arm = 0;
    std::int32_t exit_code = 0;
  };
  /// True if a received order is valid for a plan of `cells` cells.
  static bool is_valid(const Order& order, std::size_t cells) {
    constexpr int kMostExitCode = 255;
    if (order.exit_code < 0 || order.exit_code > kMostExitCode) return false;
    if (order.cell < 0) return order.cell == Order{}.cell;
    return static_cast<std::size_t>(order.cell) < cells && order.arm >= 0 &&
           static_cast<std::size_t>(order.arm) < kArms.size();
  }
  void tell(Order order, const RunOptions& options) const { pass_on(order, options); }
  Order hear(const RunOptions& options) const;

  /// The largest `value` of all ranks, on each of them.
  std::int32_t largest(std::int32_t value, const RunOptions& options) const;

  /// Collective: throws Error on every rank unless all ranks pass the same `text`. `what` names the text in the
  /// message.
  void check_equal(const std::string& text, const std::string& what, const RunOptions& options) const;

 private:
  LaunchedRanks(const Launch& launch, ProcessGroupChoice choice, Rendezvous rendezvous)
      : launch_(launch), choice_(std::move(choice)), rendezvous_(std::move(rendezvous)) {}
  void pass_on(Order& order, const RunOptions& options) const;

  Launch launch_;
  ProcessGroupChoice choice_;
  Rendezvous rendezvous_;
};

}  // namespace fp8lab
