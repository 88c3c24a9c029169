#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/cuda/peer/peer_access.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/windows.h"
#include "comm/process_group.h"

namespace fp8lab::nccl {

/// The all-gathers of one rank's GPU: each part goes the way that is fastest for where it lies and how much there is.
class Gathers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    std::int64_t writes_from_bytes = 0;  ///< NcclGroupOptions
    PeerCopyPath path = PeerCopyPath::kBySize;
  };
  /// `windows` outlives it, as does `GPU`, which notes the paths that are taken.
  Gathers(const Options& options, Windows& windows, cuda::CudaContext& gpu)
      : options_(options), windows_(windows), gpu_(gpu) {}

  /// Chooses for launch(), and mixes into `placed` what has to be equal on all ranks for that: ranks whose buffers lie
  /// elsewhere than those of others would wait for them in another kernel, or write where it is not meant.
  void choose(std::span<const GatherPart> parts, Signature& placed);
  /// What was chosen last, on `over_stream`, watched. `over`: the group's communicator.
  void launch(const Signature& call, std::span<const GatherPart> parts, Communicator& over,
              const cuda::CollectiveStream& over_stream);

 private:
  enum class Path : std::uint8_t {
    kKernels,  ///< by NCCL's kernels, the symmetric ones where both sides lie in windows
    kWrites,   ///< written to the others' windows by this rank
  };
  static constexpr std::size_t kAlgorithms = 2;

  bool goes(Path way) const;
  void record_paths();
  bool is_in_place(const GatherPart& part) const;
  void write(std::span<const GatherPart> parts, const cuda::CollectiveStream& over_stream);
  /// NCCL's own gathers of the parts that go by its kernels.
  void gather(Communicator& over, std::span<const GatherPart> parts, cudaStream_t stream);
  void gather_evenly(Communicator& over, const GatherPart& part, cudaStream_t stream) const;
  /// Adds this rank's own bytes to copies_.
  void gather_piecewise(Communicator& over, const GatherPart& part, cudaStream_t stream);

  Options options_;
  Windows& windows_;
  cuda::CudaContext& gpu_;
  std::array<bool, kAlgorithms> recorded_{};  ///< by way
  cuda::PeerCopies writes_;
  std::vector<Path> paths_;  ///< by part; these are kept between calls
  std::vector<PeerCopy> copies_;
};

}  // namespace fp8lab::nccl
