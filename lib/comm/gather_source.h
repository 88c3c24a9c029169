#pragma once

#include <cstddef>

#include "comm/process_group.h"
#include "memory/caching_allocator.h"

namespace fp8lab {

/// Segments that all ranks of a group reserve together: each its own, of one size, or nobody. A rank that gets no
/// memory, or whose capacity has no room, tells the others, so that all are refused alike.
///
/// What lies behind the segments is the backend's. They may outlive the group: a group that goes tells its sources,
/// which then serve their own rank alone.
class GatherSource : public SegmentSource {
 public:
  /// A collective, as are the two others.
  std::byte* reserve(std::size_t bytes) final;
  void decline(std::size_t bytes) final;
  void settle() final;

 private:
  /// Over which ranks agree, its buffers in host memory; null once the group has gone.
  virtual ProcessGroup* host() = 0;
  /// This rank's own memory, or nullptr. release() takes it back, whether it was shared or not.
  virtual std::byte* take(std::size_t bytes) = 0;
  /// Every rank has taken its own. Ranks are in step here.
  virtual void share(std::byte* segment, std::size_t bytes) = 0;
  /// Ranks are out of step, for one has failed: what this one has begun with them will not end by itself.
  virtual void give_up() noexcept {}

  static bool all_have(ProcessGroup& host, bool has, std::size_t bytes);
};

}  // namespace fp8lab
