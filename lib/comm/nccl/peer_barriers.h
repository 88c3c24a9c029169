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

/// Says to what waits on a group's GPUs that nobody is to be waited for any more, whatever the host or another GPU
/// does. Kernels read it: it must outlive what was launched.
class AbortFlag {
 public:
  AbortFlag();
  void set() noexcept;
  const std::uint32_t* word() const { return reinterpret_cast<const std::uint32_t*>(word_.get()); }

 private:
  cuda::PinnedBytes word_;
};

/// Where the GPUs of a group wait for each other, each in the order of one of its streams: by flags that they write to
/// each other.
class PeerBarriers {
 public:
  /// What it needs on every GPU: for each of two streams a row of flags, and a word of the GPU's own.
  static constexpr std::size_t kFlagsBytes = (2 * cuda::PeerBarrier::kMostRanks + 1) * sizeof(std::uint32_t);
  struct Args {
    std::vector<std::byte*> flags_by_rank;  ///< kFlagsBytes on each rank's GPU, as this one reaches them; all zero
    int rank = 0;
    std::shared_ptr<const AbortFlag> abort_flag;
  };
  explicit PeerBarriers(Args args) : args_(std::move(args)) {}

  /// What is launched on `over_stream` after this comes after what every rank launched on its own before. Ranks wait
  /// for each other in one order on either over_stream.
  void wait(const cuda::CollectiveStream& over_stream);
  /// wait(), the copies of `batch`, which is not empty, and wait(), none of them aside: while others are waited for,
  /// products find no room on the GPU.
  void copy_between(const cuda::CopyBatch& batch, cudaStream_t stream);

 private:
  std::uint32_t* flags_of(std::size_t rank) const {
    return reinterpret_cast<std::uint32_t*>(args_.flags_by_rank[rank]);
  }
  /// `barriers` of them are rounds from now on, the first of which is this.
  cuda::PeerBarrier next(bool aside, std::uint32_t barriers);

  Args args_;
  std::array<std::uint32_t, 2> rounds_{};  ///< barriers so far, by over_stream
};

}  // namespace fp8lab::nccl
