#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/handles.h"
#include "backend/cuda/peer/peer_access.h"
#include "backend/cuda/peer/peer_kernels.h"

namespace fp8lab::nccl {

/// Makes barriers on a group's GPUs stop waiting, whatever the host or another GPU does. Kernels read the flag, so
/// it must outlive what was launched.
class AbortFlag {
 public:
  AbortFlag();
  void set() noexcept;
  const std::uint32_t* word() const { return reinterpret_cast<const std::uint32_t*>(word_.get()); }

 private:
  cuda::PinnedBytes word_;
};

/// Barriers between the GPUs of a group, each in stream order: GPUs wait for flags that the other GPUs write to them.
class PeerBarriers {
 public:
  /// Memory that it needs on every GPU: a row of flags for each of two streams, and one word of the GPU's own.
  static constexpr std::size_t kFlagsBytes = (2 * cuda::PeerBarrier::kMostRanks + 1) * sizeof(std::uint32_t);
  struct Args {
    std::vector<std::byte*> flags_by_rank;  ///< kFlagsBytes on each rank's GPU, as this GPU reaches them; all zero
    int rank = 0;
    std::shared_ptr<const AbortFlag> abort_flag;
  };
  explicit PeerBarriers(Args args) : args_(std::move(args)) {}

  /// Makes work that is launched on `over_stream` after this wait for work that every rank launched on its stream
  /// before its own call. Ranks must call it in the same order for either stream.
  void wait(const cuda::CollectiveStream& over_stream);
  /// Equals wait(), the copies of `batch`, which is not empty, and wait(), in one kernel. Not for async gathers: matrix
  /// products find no room on the GPU while this kernel waits for other GPUs.
  void copy_between(const cuda::CopyBatch& batch, cudaStream_t stream);

 private:
  std::uint32_t* flags_of(std::size_t rank) const {
    return reinterpret_cast<std::uint32_t*>(args_.flags_by_rank[rank]);
  }
  /// Begins `barriers` rounds on one stream and returns the first of them.
  cuda::PeerBarrier next(bool async, std::uint32_t barriers);

  Args args_;
  std::array<std::uint32_t, 2> rounds_{};  ///< barriers so far: of the compute stream, of the stream of async gathers
};

}  // namespace fp8lab::nccl
