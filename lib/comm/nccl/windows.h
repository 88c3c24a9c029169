#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/nccl/communicator.h"
#include "comm/process_group.h"
#include "memory/caching_allocator.h"

namespace fp8lab::nccl {

/// The memory of one rank's card that is registered with the communicators of a group, as NCCL's symmetric kernels and copy engines
/// need it on both sides. Shared by the group and the sources that reserve it; registration belongs to the group, memory to the segment.
class Windows {
 public:
  /// `communicators` gives all of the group, made where they are not yet there: a collective. `host` meets its ranks.
  Windows(ProcessGroup& host, std::function<std::vector<Communicator*>()> communicators)
      : host_(&host), communicators_(std::move(communicators)) {}

  /// ProcessGroup::gather_source(), of the card `ordinal`.
  static std::unique_ptr<SegmentSource> source(std::shared_ptr<Windows> windows, int ordinal);

  /// Which window, and where in it: the same number on every rank that reserved the same; 0 outside of all.
  std::uint64_t place_of(const std::byte* at) const;

  /// The group goes. What its sources still have is memory like any other from now on.
  void close() noexcept;

 private:
  class Source;
  struct Window {
    std::ptrdiff_t bytes = 0;
    std::uint64_t number = 0;  ///< in order of reservation, from 1
  };
  void add(std::byte* segment, std::size_t bytes);
  void drop(std::byte* segment) noexcept;

  ProcessGroup* host_;  ///< null once closed
  std::function<std::vector<Communicator*>()> communicators_;
  std::vector<Communicator*> registered_with_;
  std::map<const std::byte*, Window> windows_;
  std::uint64_t seen_ = 0;
};

}  // namespace fp8lab::nccl
