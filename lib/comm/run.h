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

/// Types that all implementations of run_ranks() share.
namespace fp8lab {

struct RunOptions {
  int ranks = 1;
  /// The longest time that a rank waits in a collective for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  /// Ranks that are processes: the longest time that a rank whose function has ended waits for the other ranks to end.
  /// If absent, they may take as long as they like while the run goes well.
  std::optional<std::chrono::nanoseconds> shutdown_timeout = {};
  /// Ranks that are processes: this rank's number among those on its machine; below 0: its number in the run. Ranks
  /// that are threads use their own numbers.
  int local_rank = -1;
  /// See ProcessGroup::moves_data(). `simulated` never moves bytes.
  bool moves_data = true;
  /// The rank that `simulated` runs; the other process groups run every rank.
  int simulated_rank = 0;
  /// `nccl`: the process group whose ranks these are.
  std::string_view over = "in_process";
  /// `nccl`: an all-gather of at least this many bytes in memory of ProcessGroup::gather_source() is written by each
  /// rank directly to the others' memory, as ranks of one process do it. Smaller ones use NCCL's symmetric kernels.
  /// Benchmarks set it.
  std::int64_t writes_from_bytes = 0;
  /// `nccl`: false makes ProcessGroup::gather_source() null. Benchmarks set it.
  bool gather_windows = true;
  /// Ranks wait for each other to launch work on GPUs, which takes longer than waking a sleeping thread, so they spin
  /// longer before they sleep. Set by `nccl`.
  bool launches_on_gpus = false;
  /// How ranks copy from GPU to GPU. Benchmarks set it.
  PeerCopyPath peer_copies = PeerCopyPath::kBySize;
  /// By what the processes of `sockets` find each other, at the first run of each. Its size is `ranks`.
  Rendezvous rendezvous = {};
  /// Receives one line about each event that ends no rank by itself, such as a dropped connection that was no rank's,
  /// or a call of NCCL that does not return. Called on the thread that runs the ranks, and by `nccl` on threads of its
  /// own, several at a time.
  std::function<void(const std::string&)> notify = {};
  /// Ends the run from outside: its collectives throw GroupAborted, and run_ranks() throws Error.
  std::stop_token stop = {};
};

/// Thrown by run_ranks() if the process of another rank has died or no longer responds. This process can then start no
/// further run.
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
  bool echo = false;  ///< it was a GroupAborted, so another rank's failure came first
};

/// The Failure of the exception that is being handled.
Failure current_failure();
/// Throws `failure`, with "rank N: " before the reason if there are several ranks.
[[noreturn]] void throw_failure(const Failure& failure, int rank, int ranks);
/// Throws the error of a rank whose `call` cannot complete because of another rank.
[[noreturn]] void throw_aborted(const Signature& call, std::string_view group, std::string_view reason);

/// The reasons that a waiting rank reports about ranks that are late, came and then stalled, or have finished.
std::string describe_late(std::span<const int> world_ranks, const Signature& call, std::string_view group,
                          std::chrono::nanoseconds timeout);
std::string describe_stalled(std::span<const int> world_ranks, const Signature& call, std::string_view group,
                             std::chrono::nanoseconds timeout);
std::string describe_left(int world_rank, const Signature& call, std::string_view group);
/// "barrier 'x' (#2) of group 'world'"
std::string describe(const Signature& call, std::string_view group);

}  // namespace fp8lab
