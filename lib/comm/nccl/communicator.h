#pragma once

#include <nccl.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/context.h"
#include "comm/nccl/peer_barriers.h"
#include "comm/signature.h"

namespace fp8lab::nccl {

/// Throws Error with NCCL's own words unless `status` is success.
void nccl_check(ncclResult_t status, std::string_view call);

/// Why the collectives of a run can no longer be trusted on this rank; the first cause stands. Shared by its groups.
class Trouble {
 public:
  void set(const std::string& cause);
  std::string cause() const;  ///< empty: none

 private:
  mutable std::mutex mutex_;
  std::string cause_;
};

/// One rank's end of NCCL for one group, and a watch over what it has launched: a collective that does not finish in
/// time, or that NCCL itself gives up, ends in ncclCommAbort(), which frees the GPU's stream.
class Communicator {
 public:
  struct Args {
    const ncclUniqueId& id;
    int rank = 0;
    int ranks = 1;
    std::string_view group;
    std::chrono::nanoseconds timeout;
    std::shared_ptr<Trouble> trouble;
    std::shared_ptr<AbortFlag> abort_flag;  ///< set with the first abort
  };
  /// A collective, on the calling thread's current GPU.
  explicit Communicator(const Args& args, cuda::CudaContext& gpu);
  /// Waits for what is under way, unless abort() came first.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  /// `call` was launched on `stream`, one of two at most: watch it.
  void watch(const Signature& call, cudaStream_t stream);
  /// Ends what is under way, whatever the other ranks do.
  void abort() noexcept;
  /// A collective: `memory`, of ncclMemAlloc() on every rank, becomes a symmetric window. Returns where each rank's
  /// lies in this process, in order of ranks; nothing where this GPU does not reach all of them.
  std::vector<std::byte*> add_window(void* memory, std::size_t bytes);
  /// No collective. What uses the window must have finished; windows that are left go with this.
  void drop_window(void* memory) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    cuda::Event landed;
    Signature call;
    Clock::time_point deadline;
  };
  /// What was launched on one stream, oldest first. Where it is full, its newest place is taken by the next collective,
  /// which lands after the one that was there.
  struct Flights {
    cudaStream_t stream = nullptr;
    std::array<Flight, 16> ring;
    std::size_t first = 0;
    std::size_t count = 0;

    Flight& oldest() { return ring[first]; }
    Flight& next();
    void drop_landed();
  };
  Flights& flights_on(cudaStream_t stream);
  void drop_landed();
  bool all_landed() const;
  void look(const std::stop_token& ended);
  void end_all() noexcept;

  ncclComm_t comm_ = nullptr;
  int rank_;
  int ranks_;
  int ordinal_;
  std::string group_;
  std::chrono::nanoseconds timeout_;
  std::shared_ptr<Trouble> trouble_;
  std::shared_ptr<AbortFlag> abort_flag_;

  std::mutex mutex_;  ///< of all below
  bool aborted_ = false;
  std::map<void*, ncclWindow_t> windows_;
  std::array<Flights, 2> flights_;
  std::condition_variable_any never_;
  std::jthread watch_;
};

}  // namespace fp8lab::nccl
