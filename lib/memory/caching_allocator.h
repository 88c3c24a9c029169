#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>

namespace fp8lab {

/// Where an allocator gets its segments from: host memory, device memory, or addresses that nothing lies behind.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// Returns nullptr when there is no more. Aligned to 512 bytes at least.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  virtual void release(std::byte* segment, std::size_t bytes) noexcept = 0;
  /// Sets `bytes` inside a segment to `value`, before whatever is launched next. Of host memory unless overridden.
  virtual void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept;
};

/// Best-fit caching allocator over segments, with splitting and coalescing. Segments stay reserved until release_cached()
/// or until an allocation would fail without them. Small (up to 1 MiB) and large requests never share a segment, so that a
/// long-lived scale cannot pin a large one. Deterministic: the same calls give the same offsets. What has been asked for
/// before is served without touching the heap. Not thread-safe.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 512;

  /// `capacity_bytes` bounds what is reserved; 0 means as much as the source gives.
  explicit CachingAllocator(std::unique_ptr<SegmentSource> source, std::size_t capacity_bytes = 0);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns nullptr when neither the cache nor the source can serve the request. A request of 0 bytes takes kAlignment.
  std::byte* allocate(std::size_t bytes);
  void free(std::byte* pointer) noexcept;
  void release_cached() noexcept;
  /// SegmentSource::fill().
  void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept { source_->fill(at, value, bytes); }

  static std::size_t rounded(std::size_t bytes);

  std::int64_t allocated_bytes() const { return allocated_bytes_; }  ///< rounded, in use
  std::int64_t reserved_bytes() const { return reserved_bytes_; }
  std::int64_t reserved_peak_bytes() const { return reserved_peak_bytes_; }
  std::size_t capacity_bytes() const { return capacity_bytes_; }

 private:
  struct Chunk {
    std::byte* pointer;
    std::size_t bytes;
    std::byte* segment;
    std::size_t segment_bytes;
    bool small;
    bool free;
    Chunk* previous;  // neighbours inside the segment, by address
    Chunk* next;
  };
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->pointer < b->pointer;
    }
  };
  using FreeChunks = std::pmr::set<Chunk*, BySize>;

  Chunk* take_cached(std::size_t bytes, bool small);
  Chunk* reserve_segment(std::size_t bytes, bool small);
  void split(Chunk* chunk, std::size_t bytes);
  Chunk* merge(Chunk* left, Chunk* right) noexcept;

  std::unique_ptr<SegmentSource> source_;
  std::size_t capacity_bytes_;
  std::pmr::unsynchronized_pool_resource nodes_;  // of the containers below; keeps those given back
  std::pmr::map<std::byte*, Chunk> chunks_{&nodes_};  // never moved: neighbours and pools point at them
  FreeChunks free_small_{&nodes_};
  FreeChunks free_large_{&nodes_};
  std::int64_t allocated_bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t reserved_peak_bytes_ = 0;
};

}  // namespace fp8lab
