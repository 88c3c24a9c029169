#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/cuda/context.h"
#include "backend/cuda/peer/peer_kernels.h"
#include "backend/peer_access.h"

namespace fp8lab::cuda {

/// Gives collectives access to a GPU's memory: peers read and write it through their own addresses, ordered by events.
class CudaPeerAccess final : public PeerAccess {
 public:
  /// `context` must outlive this object.
  explicit CudaPeerAccess(CudaContext& context) : context_(context) {}

  std::string gpu() const override;
  std::unique_ptr<PeerStream> open_stream() override;
  void to_host(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void from_host(std::byte* to, const std::byte* from, std::int64_t bytes) override;

 private:
  CudaContext& context_;
};

/// The stream that a collective runs on: the context's own, or (`async`) another one.
struct CollectiveStream {
  cudaStream_t stream = nullptr;
  bool async = false;
};

/// PeerStream::copy() for one rank: copies to other GPUs on the collective's stream, and copies within this GPU on a
/// second stream.
class PeerCopies {
 public:
  void launch(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path,
              const CollectiveStream& collective);
  void quiesce() noexcept;

 private:
  Stream beside_;
  Event parted_;
  Event rejoined_;
};

/// The copies as one launch of the multiprocessors; nothing if copy engines make some of them or they are too many for
/// one launch.
std::optional<CopyBatch> batch_of(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path);

/// Launch the copies and reductions of PeerStream::copy and PeerStream::reduce on `stream`, for other code that moves
/// bytes between GPUs. `multiprocessors` as in peer_copy().
void launch_copies(std::span<const PeerCopy> copies, PeerCopyPath path, cudaStream_t stream, int multiprocessors = 0);
void launch_reductions(std::span<const PeerReduction> reductions, cudaStream_t stream);

}  // namespace fp8lab::cuda
