#include "memory/caching_allocator.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace fp8lab {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmallRequest = kMiB;
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kLargeSegment = 20 * kMiB;
// Requests from here on get a segment of their own size; smaller ones share a kLargeSegment.
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
    if (pointer == chunk.segment) source_->release(chunk.segment, chunk.segment_bytes);
}

std::size_t CachingAllocator::rounded(std::size_t bytes) { return round_to(std::max<std::size_t>(bytes, 1), kAlignment); }

std::byte* CachingAllocator::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const bool small = size <= kSmallRequest;
  Chunk* chunk = take_cached(size, small);
  if (!chunk) chunk = reserve_segment(size, small);
  if (!chunk) {
    release_cached();
    chunk = reserve_segment(size, small);
  }
  if (!chunk) return nullptr;
  split(chunk, size);
  chunk->free = false;
  allocated_bytes_ += static_cast<std::int64_t>(chunk->bytes);
  return chunk->pointer;
}

CachingAllocator::Chunk* CachingAllocator::take_cached(std::size_t bytes, bool small) {
  FreeChunks& pool = small ? free_small_ : free_large_;
  Chunk wanted{nullptr, bytes, nullptr, 0, small, true, nullptr, nullptr};
  const auto found = pool.lower_bound(&wanted);
  if (found == pool.end()) return nullptr;
  Chunk* chunk = *found;
  pool.erase(found);
  return chunk;
}

CachingAllocator::Chunk* CachingAllocator::reserve_segment(std::size_t bytes, bool small) {
  const std::size_t segment_bytes = small                ? kSmallSegment
                                    : bytes < kOwnSegment ? kLargeSegment
                                                          : round_to(bytes, 2 * kMiB);
  if (capacity_bytes_ != 0 && static_cast<std::size_t>(reserved_bytes_) + segment_bytes > capacity_bytes_) return nullptr;
  std::byte* segment = source_->reserve(segment_bytes);
  if (!segment) return nullptr;
  reserved_bytes_ += static_cast<std::int64_t>(segment_bytes);
  reserved_peak_bytes_ = std::max(reserved_peak_bytes_, reserved_bytes_);
  const Chunk chunk{segment, segment_bytes, segment, segment_bytes, small, false, nullptr, nullptr};
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
  (chunk->small ? free_small_ : free_large_).insert(tail);
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
  FreeChunks& pool = chunk->small ? free_small_ : free_large_;
  if (chunk->next && chunk->next->free) {
    pool.erase(chunk->next);
    merge(chunk, chunk->next);
  }
  if (chunk->previous && chunk->previous->free) {
    pool.erase(chunk->previous);
    chunk = merge(chunk->previous, chunk);
  }
  pool.insert(chunk);
}

void CachingAllocator::release_cached() noexcept {
  for (FreeChunks* pool : {&free_small_, &free_large_}) {
    for (auto it = pool->begin(); it != pool->end();) {
      Chunk* chunk = *it;
      if (chunk->previous || chunk->next) {
        ++it;
        continue;
      }
      it = pool->erase(it);
      reserved_bytes_ -= static_cast<std::int64_t>(chunk->segment_bytes);
      source_->release(chunk->segment, chunk->segment_bytes);
      chunks_.erase(chunk->pointer);
    }
  }
}

}  // namespace fp8lab
