#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/cuda/context.h"
#include "backend/cuda/peer/peer_kernels.h"
#include "backend/peer_access.h"

namespace fp8lab::cuda {

/// A GPU's memory for collectives: peers read and write it through their own addresses, ordered by events.
class CudaPeerAccess final : public PeerAccess {
 public:
  /// `GPU` outlives this.
  explicit CudaPeerAccess(CudaContext& gpu) : gpu_(gpu) {}

  std::string gpu() const override;
  std::unique_ptr<PeerStream> open_stream() override;
  void to_host(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void from_host(std::byte* to, const std::byte* from, std::int64_t bytes) override;

 private:
  CudaContext& gpu_;
};

/// Where a collective goes on its GPU: in the order of everything else, or beside it.
struct CollectiveStream {
  cudaStream_t stream = nullptr;
  bool aside = false;
};

/// PeerStream::copy() for one rank: what goes to other GPUs on a stream, and what stays on this GPU beside it.
class PeerCopies {
 public:
  void launch(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path,
              const CollectiveStream& over_stream);
  void quiesce() noexcept;

 private:
  Stream beside_;
  Event parted_;
  Event rejoined_;
};

/// The copies that multiprocessors make in one launch; nothing where copy engines make some of them, or they are too
/// many for one.
std::optional<CopyBatch> batch_of(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path);

/// Launches what PeerStream::copy and PeerStream::reduce stand for on `stream`, for others who move bytes between GPUs.
/// `multiprocessors`: peer_copy().
void launch_copies(std::span<const PeerCopy> copies, PeerCopyPath path, cudaStream_t stream, int multiprocessors = 0);
void launch_reductions(std::span<const PeerReduction> reductions, cudaStream_t stream);

}  // namespace fp8lab::cuda
