#pragma once

#include <nccl.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/context.h"
#include "comm/nccl/peer_barriers.h"
#include "comm/signature.h"

namespace fp8lab::nccl {

/// Throws Error with NCCL's error text unless `status` is success.
void nccl_check(ncclResult_t status, std::string_view call);

/// Why the collectives of a run can no longer be trusted on this rank. Keeps the first cause. Shared by the rank's
/// groups.
class Trouble {
 public:
  void set(const std::string& cause);
  std::string cause() const;  ///< empty: none

 private:
  mutable std::mutex mutex_;
  std::string cause_;
};

/// One rank's NCCL communicator of one group, with a thread that watches its collectives. If a collective does not
/// finish in time, or NCCL reports an error, the thread calls ncclCommAbort(), which frees the GPU's stream.
///
/// A call into NCCL that does not return in time, because another rank does not come to it, is reported. Hazard:
/// ncclCommAbort() would end the call, but frees the communicator before the call has returned, unless ranks of the
/// same process still hold theirs. So it ends the call if all ranks are threads of one process; otherwise the rank
/// waits until its process is ended.
class Communicator {
 public:
  struct Args {
    const ncclUniqueId& id;
    int rank = 0;
    int ranks = 1;
    std::string_view group;
    std::chrono::nanoseconds timeout;
    std::shared_ptr<Trouble> trouble;
    std::shared_ptr<AbortFlag> abort_flag;  ///< set at the first abort
    bool one_process = false;               ///< all ranks are threads of this process
    /// Gets the report of a call that does not return, on the watching thread; may be empty.
    std::function<void(const std::string&)> notify;
  };
  /// A collective. Throws Error if the other ranks do not come to it in time.
  explicit Communicator(const Args& args, cuda::CudaContext& gpu);
  /// Waits for collectives that are running, unless abort() was called.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// A stretch in which the rank's own thread calls NCCL with this communicator; calls may block until other ranks
  /// come. The watching thread does not free the communicator meanwhile, except as described above. Not nested.
  class Use {
   public:
    /// `function`: NCCL's, for the error. Throws Error with the trouble's cause if the communicator was aborted.
    Use(Communicator& over, const char* function);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ncclComm_t comm() const { return over_.comm_; }
    /// Throws Error unless `status` is success: with the trouble's cause, or else with NCCL's error text.
    void check(ncclResult_t status, std::string_view call) const;

   private:
    Communicator& over_;
  };
  /// Watches `call`, which was launched on `stream`. A communicator uses at most two streams.
  void watch(const Signature& call, cudaStream_t stream);
  /// Ends collectives that are running, whatever the other ranks do.
  void abort() noexcept;
  /// Registers `memory`, which ncclMemAlloc() returned on every rank, as a symmetric window. A collective. Returns the
  /// addresses of all ranks' windows in this process, in rank order; empty if this GPU cannot reach all of them.
  std::vector<std::byte*> add_window(void* memory, std::size_t bytes);
  /// Deregisters a window. Not a collective. Work that uses the window must have finished. The destructor deregisters
  /// windows that are left.
  void drop_window(void* memory) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct InUse {
    const char* function;
    Clock::time_point deadline;
    bool reported = false;
  };
  struct Pending {
    cuda::Event finished;
    Signature call;
    Clock::time_point deadline;
  };
  /// Collectives launched on one stream, oldest first, in consecutive places of the ring. If it is full, the next
  /// collective replaces the newest one, which finishes before it.
  struct PendingOnStream {
    cudaStream_t stream = nullptr;
    std::array<Pending, 16> ring;
    std::size_t first = 0;
    std::size_t count = 0;

    Pending& oldest() { return ring[first]; }
    /// The place of the next collective, which add() makes pending.
    Pending& next();
    void add(const Pending& next);
    void drop_finished();
  };
  PendingOnStream& pending_on(cudaStream_t stream);
  void drop_finished();
  bool all_finished() const;
  bool in_use_too_long() const { return in_use_ && Clock::now() >= in_use_->deadline; }
  void report_use();
  void watch_loop(const std::stop_token& ended);
  void end_all() noexcept;

  int rank_;
  int ranks_;
  int ordinal_;
  std::string group_;
  std::chrono::nanoseconds timeout_;
  std::shared_ptr<Trouble> trouble_;
  std::shared_ptr<AbortFlag> abort_flag_;
  bool one_process_;
  std::function<void(const std::string&)> notify_;
  ncclComm_t comm_ = nullptr;

  std::mutex mutex_;  ///< guards all members below
  bool aborted_ = false;
  std::optional<InUse> in_use_;
  std::map<void*, ncclWindow_t> windows_;
  std::array<PendingOnStream, 2> pending_;
  std::condition_variable_any never_notified_;
  std::jthread watch_;
};

}  // namespace fp8lab::nccl
