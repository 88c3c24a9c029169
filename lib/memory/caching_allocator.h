#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <vector>

namespace fp8lab {

/// The source of an allocator's segments: host memory, device memory, or addresses without memory behind them
/// (`meta`).
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// Returns a segment aligned to at least 512 bytes, or nullptr when no memory is left.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  /// Called in place of reserve() when the allocator's capacity has no room for `bytes` more. A source from which
  /// several ranks reserve together informs the other ranks.
  virtual void decline(std::size_t /*bytes*/) {}
  /// Called after a refusal, once free segments have been released and before reserve() or decline() is called again.
  /// If several ranks reserve together, it returns when every rank has released its free segments.
  virtual void settle() {}
  virtual void release(std::byte* segment, std::size_t bytes) noexcept = 0;
  /// The allocator takes, among free chunks of one size, the chunk in the segment that comes first by this number. By
  /// default it counts reservations: addresses differ between ranks and between runs.
  virtual std::uint64_t order_of(std::byte* /*segment*/, std::uint64_t number) const { return number; }
  /// Sets `bytes` inside a segment to `value`, before any work that is launched later. The default writes host memory.
  virtual void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept;
};

/// What a block is used for. Blocks of different pools never share a segment.
enum class Pool : std::uint8_t {
  kOwn,       ///< memory that only its own rank reads and writes
  kGathered,  ///< sources and results of all-gathers: shards and unsharded parameters
};
inline constexpr std::size_t kPools = 2;

/// Best-fit caching allocator over segments, with splitting and coalescing. Not thread-safe.
///
/// Segments stay reserved until release_cached() or until an allocation would fail without them. Segments that ranks
/// reserve together stay until such an allocation. Small requests (up to 1 MiB) and large ones never share a segment,
/// so a long-lived scale cannot pin a large segment. The allocator is deterministic: the same calls give the same
/// offsets in the same segments, wherever those lie. A request of a size that was served before does not touch the
/// heap.
///
/// Pool::kGathered can have a source of its own, from which ranks reserve together. Ranks that request the same sizes
/// in the same order from that pool find each block at the same offset of the same segment.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSmallestSegment = std::size_t{2} << 20;

  /// `capacity_bytes` bounds the reserved bytes of all pools together; 0 means as much as the source provides.
  explicit CachingAllocator(std::unique_ptr<SegmentSource> source, std::size_t capacity_bytes = 0);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns nullptr when neither the cache nor the source can serve the request. A request of 0 bytes occupies
  /// kAlignment bytes.
  std::byte* allocate(std::size_t bytes, Pool pool = Pool::kOwn);
  void free(std::byte* pointer) noexcept;
  /// Releases free segments, except segments of gather_from(): ranks release these together, after one of them was
  /// refused.
  void release_cached() noexcept { release_free(false); }
  /// Calls SegmentSource::fill() of the allocator's source.
  void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept { source_->fill(at, value, bytes); }

  /// Sets the source of Pool::kGathered's segments; null means the allocator's own source. Segments that this pool got
  /// from an earlier source serve no further request and are released when nothing in them is in use, so sources live
  /// as long as the allocator.
  void gather_from(std::unique_ptr<SegmentSource> source);
  /// The source set by gather_from(), or null.
  const SegmentSource* gather_source() const { return gather_source_; }

  static std::size_t rounded(std::size_t bytes);

  std::int64_t allocated_bytes() const { return allocated_bytes_; }  ///< in use, sizes rounded up
  std::int64_t reserved_bytes() const { return reserved_bytes_; }
  std::int64_t reserved_peak_bytes() const { return reserved_peak_bytes_; }
  std::size_t capacity_bytes() const { return capacity_bytes_; }

 private:
  struct Chunk {
    std::byte* pointer;
    std::size_t bytes;
    std::byte* segment;
    std::size_t segment_bytes;
    std::uint64_t segment_order;
    SegmentSource* source;  // that the segment came from
    Pool pool;
    bool small;
    bool free;
    Chunk* previous;  // neighbours inside the segment, by address
    Chunk* next;
  };
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      if (a->bytes != b->bytes) return a->bytes < b->bytes;
      return a->segment_order != b->segment_order ? a->segment_order < b->segment_order : a->pointer < b->pointer;
    }
  };
  using FreeChunks = std::pmr::set<Chunk*, BySize>;

  Chunk* take_cached(std::size_t bytes, Pool pool, bool small);
  Chunk* reserve_segment(std::size_t bytes, Pool pool, bool small);
  void split(Chunk* chunk, std::size_t bytes);
  Chunk* merge(Chunk* left, Chunk* right) noexcept;
  void release_free(bool gathered_too) noexcept;
  void release_segment(Chunk* chunk) noexcept;
  SegmentSource& source_of(Pool pool) const {
    return pool == Pool::kGathered && gather_source_ != nullptr ? *gather_source_ : *source_;
  }
  FreeChunks& free_chunks(Pool pool, bool small) { return free_[2 * static_cast<std::size_t>(pool) + (small ? 1 : 0)]; }

  std::unique_ptr<SegmentSource> source_;
  std::size_t capacity_bytes_;
  std::vector<std::unique_ptr<SegmentSource>> gather_sources_;  // the last is the present one, if any
  SegmentSource* gather_source_ = nullptr;
  std::pmr::unsynchronized_pool_resource nodes_;      // nodes of the containers below; keeps freed nodes for reuse
  std::pmr::map<std::byte*, Chunk> chunks_{&nodes_};  // nodes never move: neighbours and free_ point at them
  // Two sets for each pool, large chunks first.
  std::array<FreeChunks, 2 * kPools> free_{FreeChunks(&nodes_), FreeChunks(&nodes_), FreeChunks(&nodes_),
                                           FreeChunks(&nodes_)};
  std::uint64_t segments_seen_ = 0;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t reserved_peak_bytes_ = 0;
};

}  // namespace fp8lab
