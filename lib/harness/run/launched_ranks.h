#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/launch.h"
#include "comm/run.h"
#include "harness/cell/cell.h"

namespace fp8lab {

/// The processes that mpirun, srun or torchrun started to be the ranks of one run of this program: this one and the
/// others. Rank 0 is the head, which alone judges and reports; the others do as it says.
class LaunchedRanks {
 public:
  /// What the environment tells; nothing where nobody launched several processes. Throws Error where it contradicts
  /// itself or this build cannot serve it.
  static std::optional<LaunchedRanks> discover(const EnvironmentLookup& variable);

  int rank() const { return launch_.rank; }
  int size() const { return launch_.size; }
  int local_rank() const { return launch_.local_rank; }
  bool is_head() const { return launch_.rank == 0; }
  /// "4 ranks: mpirun launched the ranks"
  std::string describe() const;
  std::string launcher() const { return std::string(launch_.launcher); }

  /// Calls `rank_function` on every rank's process, as run_ranks() does; `options` without ranks and rendezvous.
  /// `on_gpus`: ranks have GPUs, whose bytes move over NCCL where this build has it.
  void run(RunOptions options, const RankFunction& rank_function, bool on_gpus = false) const;

  /// What the head has the others do next: an arm of a cell, by their places in the plan and in Arm; or, without a
  /// cell, end with an exit code.
  struct Order {
    std::int64_t cell = -1;
    std::int32_t arm = 0;
    std::int32_t exit_code = 0;
  };
  /// Whether an order that was heard is one that rank 0 may give, for a plan of `cells` cells.
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

  /// Throws Error, on every rank, unless all of them provide the same text.
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
