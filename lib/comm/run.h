#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "backend/peer_access.h"
#include "comm/launch.h"
#include "comm/process_group.h"

/// What every way of running ranks shares.
namespace fp8lab {

struct RunOptions {
  int ranks = 1;
  /// The longest that a rank waits in a collective for the others to come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  /// Of ranks that are processes: the longest that one whose function has ended waits for the others' to end. Without,
  /// they may take as long as they like while the run goes well.
  std::optional<std::chrono::nanoseconds> shutdown_timeout = {};
  /// Of the rank that this process is, among those on its machine; below 0: its number in the run. Ranks that are
  /// threads have their own.
  int local_rank = -1;
  /// See ProcessGroup::moves_data(). `simulated` never moves any.
  bool moves_data = true;
  /// The rank that `simulated` is; the others run every rank.
  int simulated_rank = 0;
  /// Of `nccl`: the row whose ranks these are.
  std::string_view over = "in_process";
  /// Of `nccl`: what an all-gather finds in memory of ProcessGroup::gather_source() each rank writes to the others'
  /// itself, as ranks of one process do it, if it is at least as many bytes in all. Less goes by NCCL's symmetric
  /// kernels; benchmarks choose.
  std::int64_t writes_from_bytes = 0;
  /// Of `nccl`: false leaves ProcessGroup::gather_source() null; benchmarks choose.
  bool gather_windows = true;
  /// Ranks wait for each other to launch work on GPUs, which takes longer than to wake a sleeper: they spin longer.
  /// Set by `nccl`.
  bool launches_on_gpus = false;
  /// How ranks write from GPU to GPU; benchmarks choose.
  PeerCopyPath peer_copies = PeerCopyPath::kBySize;
  /// Where the processes of `sockets` find each other, at the first run of each. Its size is `ranks`.
  Rendezvous rendezvous = {};
  /// Is found_here in a line, on the thread that runs the ranks, what happened that is no error: a connection that was
  /// no rank's and was dropped.
  std::function<void(const std::string&)> notify = {};
  /// Ends the run from outside: its collectives throw GroupAborted, and run_ranks() throws Error.
  std::stop_token stop = {};
};

/// Thrown by run_ranks() where the process of another rank has died or no longer answers: no further run can follow in
/// this one.
class RanksLost : public Error {
 public:
  using Error::Error;
};

using RankFunction = std::function<void(ProcessGroup&)>;
using RunRanks = void (*)(const RunOptions&, const RankFunction&);

inline constexpr std::string_view kStoppedFromOutside = "the run was stopped from outside";

/// Why a rank ended early, in a form that outlives its exception and can travel.
struct Failure {
  std::string reason;
  bool out_of_memory = false;
  bool echo = false;  ///< a GroupAborted: another rank's failure came first
};

/// Of the exception being handled.
Failure current_failure();
/// Throws it, with "rank N: " before the reason where there are more ranks than one.
[[noreturn]] void throw_failure(const Failure& failure, int rank, int ranks);
/// The error of a rank whose `call` cannot complete because of what happened to another.
[[noreturn]] void throw_aborted(const Signature& call, std::string_view group, std::string_view reason);

/// The causes that a waiting rank finds, for the ranks it waits for.
std::string describe_late(std::span<const int> world_ranks, const Signature& call, std::string_view group,
                          std::chrono::nanoseconds timeout);
std::string describe_left(int world_rank, const Signature& call, std::string_view group);
/// "barrier 'x' (#2) of group 'world'"
std::string describe(const Signature& call, std::string_view group);

}  // namespace fp8lab
