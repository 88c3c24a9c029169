#pragma once

#include <cstddef>

#include "comm/process_group.h"
#include "memory/caching_allocator.h"

namespace fp8lab {

/// Segments that all ranks of a group reserve together: either every rank reserves one of the same size, or none does.
/// A rank that gets no memory, or whose capacity has no room, informs the others, so that all are refused alike.
///
/// The backend provides the memory behind the segments. Segments may outlive the group: a destroyed group informs
/// its sources, which then serve only their own rank.
class GatherSource : public SegmentSource {
 public:
  /// A collective, as are decline() and settle().
  std::byte* reserve(std::size_t bytes) final;
  void decline(std::size_t bytes) final;
  void settle() final;

 private:
  /// The group over which ranks agree, with buffers in host memory; null once the group has been destroyed.
  virtual ProcessGroup* host() = 0;
  /// Reserves this rank's memory, or returns nullptr. release() frees it, whether share() was called or not.
  virtual std::byte* take(std::size_t bytes) = 0;
  /// Called on every rank, once every rank has reserved its segment.
  virtual void share(std::byte* segment, std::size_t bytes) = 0;
  /// Called after another rank has failed: work that this rank has begun with the others would never end by itself.
  virtual void give_up() noexcept {}

  static bool all_have(ProcessGroup& host, bool has, std::size_t bytes);
};

}  // namespace fp8lab
