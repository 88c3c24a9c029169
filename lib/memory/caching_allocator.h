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

/// Where an allocator gets its segments from: host memory, device memory, or addresses that nothing lies behind.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// Returns nullptr when there is no more. Aligned to 512 bytes at least.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  /// Called in place of reserve() where the allocator's capacity is too small for `bytes` more: sources from which
  /// several ranks reserve together tell the others.
  virtual void decline(std::size_t /*bytes*/) {}
  /// Called after a refusal, when what is free has been given back, before reserve() or decline() is called again:
  /// where several ranks reserve together, all have given theirs back when it returns.
  virtual void settle() {}
  virtual void release(std::byte* segment, std::size_t bytes) noexcept = 0;
  /// Sets `bytes` inside a segment to `value`, before whatever is launched next. Of host memory unless overridden.
  virtual void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept;
};

/// What memory is for. Blocks of different pools never share a segment.
enum class Pool : std::uint8_t {
  kOwn,       ///< everything that one rank alone reads and writes
  kGathered,  ///< what all-gathers read and write: shards, and the unsharded parameters that come of them
};
inline constexpr std::size_t kPools = 2;

/// Best-fit caching allocator over segments, with splitting and coalescing. Segments stay reserved until
/// release_cached() or until an allocation would fail without them; those that ranks reserve together, until such an
/// allocation would. Small (up to 1 MiB) and large requests never share a segment, so that a long-lived scale cannot
/// pin a large one. Deterministic: the same calls give the same offsets in the same segments, wherever those lie. What
/// has been asked for before is served without touching the heap. Not thread-safe.
///
/// Pool::kGathered can have a source of its own, from which ranks reserve together. Ranks that ask the pool for the
/// same sizes in the same order then find each block at the same place of the same segment.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 512;

  /// `capacity_bytes` bounds what is reserved over all pools; 0 means as much as the source gives.
  explicit CachingAllocator(std::unique_ptr<SegmentSource> source, std::size_t capacity_bytes = 0);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns nullptr when neither the cache nor the source can serve the request. A request of 0 bytes takes
  /// kAlignment.
  std::byte* allocate(std::size_t bytes, Pool pool = Pool::kOwn);
  void free(std::byte* pointer) noexcept;
  /// But for those of gather_from(): ranks give them back together, when one of them is refused more.
  void release_cached() noexcept { release_free(false); }
  /// SegmentSource::fill().
  void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept { source_->fill(at, value, bytes); }

  /// Where Pool::kGathered gets its segments from; null: where the other does. Segments that it had from elsewhere
  /// serve no further request and go back as soon as nothing in them is in use, so sources live as long as this.
  void gather_from(std::unique_ptr<SegmentSource> source);
  /// That of gather_from(); null where Pool::kGathered has none of its own.
  const SegmentSource* gather_source() const { return gather_source_; }

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
    std::uint64_t segment_number;  // in order of reservation
    SegmentSource* source;         // of the segment
    Pool pool;
    bool small;
    bool free;
    Chunk* previous;  // neighbours inside the segment, by address
    Chunk* next;
  };
  // By number, not by address: where segments lie differs from rank to rank and from run to run.
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      if (a->bytes != b->bytes) return a->bytes < b->bytes;
      return a->segment_number != b->segment_number ? a->segment_number < b->segment_number : a->pointer < b->pointer;
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
  std::vector<std::unique_ptr<SegmentSource>> gather_sources_;  // that of today, if any, is the last
  SegmentSource* gather_source_ = nullptr;
  std::pmr::unsynchronized_pool_resource nodes_;      // of the containers below; keeps those given back
  std::pmr::map<std::byte*, Chunk> chunks_{&nodes_};  // never moved: neighbours and pools point at them
  // By pool, large ones first.
  std::array<FreeChunks, 2 * kPools> free_{FreeChunks(&nodes_), FreeChunks(&nodes_), FreeChunks(&nodes_),
                                           FreeChunks(&nodes_)};
  std::uint64_t segments_seen_ = 0;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t reserved_peak_bytes_ = 0;
};

}  // namespace fp8lab
