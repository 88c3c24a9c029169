#include "memory/caching_allocator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fp8lab {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmallRequest = kMiB;
constexpr std::size_t kLargeSegment = 20 * kMiB;
// Requests of at least this size get a segment of their own; smaller ones share a kLargeSegment.
constexpr std::size_t kOwnSegment = 10 * kMiB;

std::size_t round_to(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace

void SegmentSource::fill(std::byte* at, std::byte value, std::size_t bytes) noexcept {
  std::memset(at, std::to_integer<int>(value), bytes);
}

CachingAllocator::CachingAllocator(std::unique_ptr<SegmentSource> source, std::size_t capacity_bytes)
    : source_(std::move(source)), capacity_bytes_(capacity_bytes) {}

CachingAllocator::~CachingAllocator() {
  for (auto& [pointer, chunk] : chunks_)
    if (pointer == chunk.segment) chunk.source->release(chunk.segment, chunk.segment_bytes);
}

std::size_t CachingAllocator::rounded(std::size_t bytes) {
  return round_to(std::max<std::size_t>(bytes, 1), kAlignment);
}

std::byte* CachingAllocator::allocate(std::size_t bytes, Pool pool) {
  const std::size_t size = rounded(bytes);
  const bool small = size <= kSmallRequest;
  Chunk* chunk = take_cached(size, pool, small);
  if (!chunk) chunk = reserve_segment(size, pool, small);
  if (!chunk) {
    // If ranks reserve together, all of them were refused, so all of them come here.
    release_free(pool == Pool::kGathered);
    source_of(pool).settle();
    chunk = reserve_segment(size, pool, small);
  }
  if (!chunk) return nullptr;
  split(chunk, size);
  chunk->free = false;
  allocated_bytes_ += static_cast<std::int64_t>(chunk->bytes);
  return chunk->pointer;
}

CachingAllocator::Chunk* CachingAllocator::take_cached(std::size_t bytes, Pool pool, bool small) {
  FreeChunks& chunks = free_chunks(pool, small);
  Chunk wanted{};
  wanted.bytes = bytes;
  const auto found = chunks.lower_bound(&wanted);
  if (found == chunks.end()) return nullptr;
  Chunk* chunk = *found;
  chunks.erase(found);
  return chunk;
}

CachingAllocator::Chunk* CachingAllocator::reserve_segment(std::size_t bytes, Pool pool, bool small) {
  const std::size_t segment_bytes = small                 ? kSmallestSegment
                                    : bytes < kOwnSegment ? kLargeSegment
                                                          : round_to(bytes, 2 * kMiB);
  SegmentSource& source = source_of(pool);
  if (capacity_bytes_ != 0 && static_cast<std::size_t>(reserved_bytes_) + segment_bytes > capacity_bytes_) {
    source.decline(segment_bytes);
    return nullptr;
  }
  std::byte* segment = source.reserve(segment_bytes);
  if (!segment) return nullptr;
  reserved_bytes_ += static_cast<std::int64_t>(segment_bytes);
  reserved_peak_bytes_ = std::max(reserved_peak_bytes_, reserved_bytes_);
  const Chunk chunk{.pointer = segment,
                    .bytes = segment_bytes,
                    .segment = segment,
                    .segment_bytes = segment_bytes,
                    .segment_order = source.order_of(segment, ++segments_seen_),
                    .source = &source,
                    .pool = pool,
                    .small = small,
                    .free = false,
                    .previous = nullptr,
                    .next = nullptr};
  return &chunks_.insert_or_assign(segment, chunk).first->second;
}

void CachingAllocator::split(Chunk* chunk, std::size_t bytes) {
  const std::size_t rest = chunk->bytes - bytes;
  const std::size_t smallest_rest = chunk->small ? kAlignment : kSmallRequest + kAlignment;
  if (rest < smallest_rest) return;
  std::byte* pointer = chunk->pointer + bytes;
  Chunk* tail = &chunks_.insert_or_assign(pointer, *chunk).first->second;
  tail->pointer = pointer;
  tail->bytes = rest;
  tail->free = true;
  tail->previous = chunk;
  if (chunk->next) chunk->next->previous = tail;
  chunk->next = tail;
  chunk->bytes = bytes;
  free_chunks(chunk->pool, chunk->small).insert(tail);
}

CachingAllocator::Chunk* CachingAllocator::merge(Chunk* left, Chunk* right) noexcept {
  left->bytes += right->bytes;
  left->next = right->next;
  if (right->next) right->next->previous = left;
  chunks_.erase(right->pointer);
  return left;
}

void CachingAllocator::free(std::byte* pointer) noexcept {
  const auto found = chunks_.find(pointer);
  if (found == chunks_.end()) return;
  Chunk* chunk = &found->second;
  allocated_bytes_ -= static_cast<std::int64_t>(chunk->bytes);
  chunk->free = true;
  FreeChunks& chunks = free_chunks(chunk->pool, chunk->small);
  if (chunk->next && chunk->next->free) {
    chunks.erase(chunk->next);
    merge(chunk, chunk->next);
  }
  if (chunk->previous && chunk->previous->free) {
    chunks.erase(chunk->previous);
    chunk = merge(chunk->previous, chunk);
  }
  if (chunk->source == &source_of(chunk->pool))
    chunks.insert(chunk);
  else if (chunk->bytes == chunk->segment_bytes)
    release_segment(chunk);
}

void CachingAllocator::release_segment(Chunk* chunk) noexcept {
  reserved_bytes_ -= static_cast<std::int64_t>(chunk->segment_bytes);
  chunk->source->release(chunk->segment, chunk->segment_bytes);
  chunks_.erase(chunk->pointer);
}

void CachingAllocator::release_free(bool gathered_too) noexcept {
  for (FreeChunks& chunks : free_) {
    for (auto it = chunks.begin(); it != chunks.end();) {
      Chunk* chunk = *it;
      if (chunk->bytes < chunk->segment_bytes || (chunk->source != source_.get() && !gathered_too)) {
        ++it;
        continue;
      }
      it = chunks.erase(it);
      release_segment(chunk);
    }
  }
}

void CachingAllocator::gather_from(std::unique_ptr<SegmentSource> source) {
  if (source == nullptr && gather_source_ == nullptr) return;
  for (const bool small : {false, true}) {
    FreeChunks& chunks = free_chunks(Pool::kGathered, small);
    for (Chunk* const chunk : chunks)
      if (chunk->bytes == chunk->segment_bytes) release_segment(chunk);
    chunks.clear();
  }
  gather_source_ = source.get();
  if (source != nullptr) gather_sources_.push_back(std::move(source));
}

}  // namespace fp8lab
