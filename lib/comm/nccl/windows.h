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

/// The memory of one rank's GPU that is registered with the communicator of a group: NCCL maps the memory of all ranks
/// here for that, and its symmetric kernels need it on both sides of a gather. Shared by the group and the sources that
/// reserve it; registration belongs to the group, memory to the segment.
class Windows {
 public:
  struct Args {
    ProcessGroup& host;  ///< connects the group's ranks on the host
    int ordinal = 0;     ///< of this rank's GPU
    std::shared_ptr<const AbortFlag> abort_flag;
    std::function<Communicator&()> communicator;  ///< the group's, made where it is not yet there: a collective
  };
  explicit Windows(Args args);
  /// Waits for the GPU.
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  /// ProcessGroup::gather_source().
  static std::unique_ptr<SegmentSource> source(std::shared_ptr<Windows> windows);

  /// Which window, and where in it: the same number on every rank that reserved the same; 0 outside of all.
  std::uint64_t place_of(const std::byte* at) const;

  /// True if every rank writes to all others' windows where it finds them, as they have tried, and GPUs wait for each
  /// other there.
  bool reach_all() const { return reach_all_ && barriers_.has_value(); }
  PeerBarriers& barriers() { return *barriers_; }
  /// Where `rank` has what lies at `at` here, in a window.
  std::byte* of_rank(int rank, const std::byte* at) const;

  /// The group goes. What its sources still have is memory like any other from now on.
  void close() noexcept;

 private:
  class Source;
  struct Window {
    std::ptrdiff_t bytes = 0;
    std::uint64_t number = 0;  ///< in order of reservation, from 1
    std::vector<std::byte*>
        by_rank{};  ///< its first byte on each rank's GPU, as this one reaches it; empty unless it can
  };
  /// True if each rank finds the marks that the others leave where its window seems to be.
  bool try_out(std::byte* segment, const Window& window) const;
  bool agreed(bool here, std::string_view on) const;
  /// Memory of every rank becomes a window of the group.
  Window open(std::byte* segment, std::size_t bytes);
  void open_barriers();
  const std::pair<const std::byte* const, Window>* window_of(const std::byte* at) const;
  void add(std::byte* segment, std::size_t bytes);
  void drop(std::byte* segment) noexcept;
  void await_gpu() const noexcept;
  /// Ends what is under way between the group's GPUs.
  void give_up() noexcept;

  ProcessGroup* host_;  ///< null once closed
  int ordinal_;
  std::shared_ptr<const AbortFlag> abort_flag_;
  std::function<Communicator&()> communicator_;
  Communicator* registered_with_ = nullptr;  ///< before there is a window
  std::map<const std::byte*, Window> windows_;
  std::byte* flags_ = nullptr;  ///< of barriers
  std::optional<PeerBarriers> barriers_;
  bool reach_all_ = true;
  std::uint64_t seen_ = 0;
};

}  // namespace fp8lab::nccl
