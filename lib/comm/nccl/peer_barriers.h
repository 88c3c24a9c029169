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

/// Where a group's GPUs meet, each in the order of one of its streams: by flags that they write to each other.
class PeerBarriers {
 public:
  /// What it needs on every GPU: for each of two lanes a row of flags, and a word of the GPU's own.
  static constexpr std::size_t kFlagsBytes = (2 * cuda::PeerBarrier::kMostRanks + 1) * sizeof(std::uint32_t);
  struct Args {
    std::vector<std::byte*> flags_by_rank;  ///< kFlagsBytes on each rank's GPU, as this one reaches them; all zero
    int rank = 0;
    std::shared_ptr<const AbortFlag> abort_flag;
  };
  explicit PeerBarriers(Args args) : args_(std::move(args)) {}

  /// What is launched on `lane` after this comes after what every rank launched on its own before. Ranks meet in one
  /// order on either lane.
  void meet(const cuda::CollectiveStream& lane);
  /// meet(), the copies of `batch`, which is not empty, and meet(), none of them aside: while others are waited for,
  /// products find no room on the GPU.
  void copy_between(const cuda::CopyBatch& batch, cudaStream_t stream);

 private:
  std::uint32_t* flags_of(std::size_t rank) const {
    return reinterpret_cast<std::uint32_t*>(args_.flags_by_rank[rank]);
  }
  /// `meetings` of them are held from now on, the first of which is this.
  cuda::PeerBarrier next(bool aside, std::uint32_t meetings);

  Args args_;
  std::array<std::uint32_t, 2> held_{};  ///< meetings so far, by lane
};

}  // namespace fp8lab::nccl
