#pragma once

#include <cstddef>

#include "memory/caching_allocator.h"

namespace fp8lab {

/// Segments from the heap.
class HeapSource final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override { return new std::byte[bytes]; }
  void release(std::byte* segment, std::size_t) noexcept override { delete[] segment; }
};

}  // namespace fp8lab
