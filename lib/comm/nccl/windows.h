#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/nccl/communicator.h"
#include "comm/nccl/peer_barriers.h"
#include "comm/process_group.h"
#include "memory/caching_allocator.h"

namespace fp8lab::nccl {

/// The memory of one rank's GPU that is registered as windows with the communicator of a group. NCCL maps the windows
/// of all ranks into this process, and its symmetric kernels need windows on both sides of a gather. Shared by the
/// group and the sources that reserve segments. Registration belongs to the group, memory to the segment.
class Windows {
 public:
  struct Args {
    ProcessGroup& host;  ///< the group's ranks, for agreement on the host
    int ordinal = 0;     ///< ordinal of this rank's GPU
    std::shared_ptr<const AbortFlag> abort_flag;
    std::function<Communicator&()> communicator;  ///< returns the group's; a collective if it must be made first
  };
  explicit Windows(Args args);
  /// Waits for the GPU.
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  /// ProcessGroup::gather_source().
  static std::unique_ptr<SegmentSource> source(std::shared_ptr<Windows> windows);

  /// The window of `at` and the offset in it, as one number: equal on every rank that reserved the same. 0 outside of
  /// all windows.
  std::uint64_t place_of(const std::byte* at) const;

  /// True if every rank can write to all other ranks' windows, which was tried out, and barriers between the GPUs are
  /// available.
  bool reach_all() const { return reach_all_ && barriers_.has_value(); }
  PeerBarriers& barriers() { return *barriers_; }
  /// Address of rank `rank`'s counterpart of `at`, which lies in a window.
  std::byte* of_rank(int rank, const std::byte* at) const;

  /// Called when the group is destroyed. Memory that its sources still hold is ordinary memory from then on.
  void close() noexcept;

 private:
  class Source;
  struct Window {
    std::ptrdiff_t bytes = 0;
    std::uint64_t number = 0;  ///< in order of reservation, from 1
    /// Its first byte on each rank's GPU, as this GPU reaches it; empty if this GPU cannot reach all of them.
    std::vector<std::byte*> by_rank{};
  };
  /// True if each rank finds the marks that the other ranks write to its window. A collective.
  bool try_out(std::byte* segment, const Window& window) const;
  bool agreed(bool here, std::string_view on) const;
  /// Makes `segment`, one on every rank, a window of the group. A collective.
  Window open(std::byte* segment, std::size_t bytes);
  void open_barriers();
  const std::pair<const std::byte* const, Window>* window_of(const std::byte* at) const;
  void add(std::byte* segment, std::size_t bytes);
  void drop(std::byte* segment) noexcept;
  void await_gpu() const noexcept;
  /// Ends work that is running between the group's GPUs.
  void give_up() noexcept;

  ProcessGroup* host_;  ///< null once closed
  int ordinal_;
  std::shared_ptr<const AbortFlag> abort_flag_;
  std::function<Communicator&()> communicator_;
  Communicator* registered_with_ = nullptr;  ///< null until there is a window, and once closed
  std::map<const std::byte*, Window> windows_;
  std::byte* flags_ = nullptr;  ///< flags of barriers
  std::optional<PeerBarriers> barriers_;
  bool reach_all_ = true;
  std::uint64_t seen_ = 0;
};

}  // namespace fp8lab::nccl
