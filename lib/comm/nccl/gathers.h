#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/cuda/peer/peer_access.h"
#include "comm/nccl/calls.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/windows.h"
#include "comm/process_group.h"

namespace fp8lab::nccl {

/// The all-gathers of one rank's GPU. Each part uses the path that is fastest for its place in memory and its size.
class Gathers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    std::int64_t writes_from_bytes = 0;  ///< NcclGroupOptions
    PeerCopyPath path = PeerCopyPath::kBySize;
  };
  /// `windows` and `gpu` must outlive it. `gpu` records the paths that are used.
  Gathers(const Options& options, Windows& windows, cuda::CudaContext& gpu)
      : options_(options), windows_(windows), gpu_(gpu) {}

  /// Chooses the paths for launch(), and mixes into `placed` the facts that must be equal on all ranks. Hazard: ranks
  /// whose buffers lie at other places would choose other paths, and then wait for each other in different kernels or
  /// write to wrong places.
  void choose(std::span<const GatherPart> parts, Signature& placed);
  /// Launches the gather as chosen last, on `over_stream`, and watches it. `over` is the group's communicator.
  void launch(const Signature& call, std::span<const GatherPart> parts, Communicator& over,
              const cuda::CollectiveStream& over_stream);

 private:
  enum class Path : std::uint8_t {
    kKernels,  ///< NCCL's kernels; the symmetric ones if both sides lie in windows
    kWrites,   ///< this rank writes to the other ranks' windows
  };
  static constexpr std::size_t kPathCount = 2;

  bool uses(Path path) const;
  void record_paths();
  bool is_in_place(const GatherPart& part) const;
  void write(std::span<const GatherPart> parts, const cuda::CollectiveStream& over_stream);
  /// NCCL's gathers of the parts that use its kernels.
  void gather(Communicator& over, std::span<const GatherPart> parts, cudaStream_t stream);
  /// Adds the copy of this rank's own bytes to copies_.
  void gather_piecewise(Launch& launch, const GatherPart& part);

  Options options_;
  Windows& windows_;
  cuda::CudaContext& gpu_;
  std::array<bool, kPathCount> recorded_{};  ///< by path
  cuda::PeerCopies writes_;
  std::vector<Path> paths_;  ///< by part; these vectors keep their memory between calls
  std::vector<PeerCopy> copies_;
};

}  // namespace fp8lab::nccl
