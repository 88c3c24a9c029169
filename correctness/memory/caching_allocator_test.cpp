#include "memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab {
namespace {

// Counts segments and returns addresses that are never read.
class CountingSource final : public SegmentSource {
 public:
  explicit CountingSource(int& live, std::size_t limit_bytes = 0, bool downwards = false)
      : live_(live), limit_bytes_(limit_bytes), downwards_(downwards) {}
  std::byte* reserve(std::size_t bytes) override {
    if (limit_bytes_ != 0 && reserved_ + bytes > limit_bytes_) return nullptr;
    ++live_;
    reserved_ += bytes;
    if (downwards_) next_ -= bytes;
    std::byte* segment = reinterpret_cast<std::byte*>(next_);
    if (!downwards_) next_ += bytes;
    return segment;
  }
  void release(std::byte*, std::size_t bytes) noexcept override {
    --live_;
    reserved_ -= bytes;
  }

 private:
  int& live_;
  std::size_t limit_bytes_;
  bool downwards_;  ///< each segment lies below the one before
  std::size_t reserved_ = 0;
  // Every source has a range of addresses of its own.
  static inline std::uintptr_t sources_ = 0;
  std::uintptr_t next_ = ++sources_ << 41;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(CachingAllocator, RoundsToItsAlignment) {
  EXPECT_EQ(CachingAllocator::rounded(0), 512u);
  EXPECT_EQ(CachingAllocator::rounded(1), 512u);
  EXPECT_EQ(CachingAllocator::rounded(512), 512u);
  EXPECT_EQ(CachingAllocator::rounded(513), 1024u);
}

// Segment sizes decide how much memory a GPU must have: small requests share 2 MiB, larger ones 20 MiB, and from 10 MiB
// on each request has a segment of its own, a multiple of 2 MiB.
TEST(CachingAllocator, ReservesSegmentsBySizeOfTheRequest) {
  const std::pair<std::size_t, std::size_t> cases[] = {
      {0, 2 * kMiB},          {kMiB, 2 * kMiB},           {kMiB + 1, 20 * kMiB}, {10 * kMiB - 512, 20 * kMiB},
      {10 * kMiB, 10 * kMiB}, {10 * kMiB + 1, 12 * kMiB},
  };
  for (const auto& [bytes, reserved] : cases) {
    int segments = 0;
    CachingAllocator allocator(std::make_unique<CountingSource>(segments));
    allocator.allocate(bytes);
    EXPECT_EQ(allocator.reserved_bytes(), static_cast<std::int64_t>(reserved)) << bytes;
    EXPECT_EQ(segments, 1);
  }
}

// Up to 1 MiB that a large request leaves of a chunk stays with it, since no large request could use that; a small
// request always splits its chunk.
TEST(CachingAllocator, SplitsAChunkIfItsPoolCanUseTheRest) {
  const auto taken = [](std::size_t bytes) {
    int segments = 0;
    CachingAllocator allocator(std::make_unique<CountingSource>(segments));
    allocator.allocate(bytes);
    return allocator.allocated_bytes();
  };
  EXPECT_EQ(taken(21 * kMiB + 512), static_cast<std::int64_t>(22 * kMiB));
  EXPECT_EQ(taken(21 * kMiB), static_cast<std::int64_t>(22 * kMiB));
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::byte* const first = allocator.allocate(22 * kMiB);
  allocator.free(first);
  EXPECT_EQ(allocator.allocate(21 * kMiB - 512), first);
  EXPECT_EQ(allocator.allocated_bytes(), static_cast<std::int64_t>(21 * kMiB - 512));
  EXPECT_EQ(allocator.allocate(kMiB + 512), first + 21 * kMiB - 512);
  EXPECT_EQ(segments, 1);
  EXPECT_EQ(taken(kMiB - 512), static_cast<std::int64_t>(kMiB - 512));
}

TEST(CachingAllocator, ReusesAFreedChunk) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::byte* first = allocator.allocate(40 * kMiB);
  allocator.free(first);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
  EXPECT_EQ(allocator.reserved_bytes(), static_cast<std::int64_t>(40 * kMiB));
  EXPECT_EQ(allocator.allocate(40 * kMiB), first);
  EXPECT_EQ(segments, 1);
}

TEST(CachingAllocator, MergesFreeNeighbours) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::vector<std::byte*> parts;
  for (int i = 0; i < 10; ++i) parts.push_back(allocator.allocate(2 * kMiB));
  ASSERT_EQ(segments, 1);
  for (std::size_t i : {1u, 3u, 2u, 0u, 9u, 5u, 7u, 6u, 4u, 8u}) allocator.free(parts[i]);
  EXPECT_EQ(allocator.allocate(20 * kMiB - 512), parts[0]);
  EXPECT_EQ(segments, 1);
}

TEST(CachingAllocator, SmallRequestsDoNotPinLargeSegments) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::byte* large = allocator.allocate(30 * kMiB);
  std::byte* small = allocator.allocate(4);
  EXPECT_EQ(segments, 2);
  allocator.free(large);
  allocator.release_cached();
  EXPECT_EQ(segments, 1);
  allocator.free(small);
  allocator.release_cached();
  EXPECT_EQ(segments, 0);
  EXPECT_EQ(allocator.reserved_bytes(), 0);
}

TEST(CachingAllocator, ReturnsCachedSegmentsBeforeItFails) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments), 64 * kMiB);
  std::byte* first = allocator.allocate(40 * kMiB);
  EXPECT_EQ(allocator.allocate(40 * kMiB), nullptr);
  allocator.free(first);
  EXPECT_NE(allocator.allocate(60 * kMiB), nullptr);
  EXPECT_EQ(segments, 1);
}

TEST(CachingAllocator, ExhaustedSourceGivesNull) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments, 30 * kMiB));
  EXPECT_NE(allocator.allocate(30 * kMiB), nullptr);
  EXPECT_EQ(allocator.allocate(1), nullptr);
}

TEST(CachingAllocator, ReturnsEverySegment) {
  int segments = 0;
  {
    CachingAllocator allocator(std::make_unique<CountingSource>(segments));
    allocator.allocate(1);
    allocator.allocate(5 * kMiB);
    allocator.allocate(50 * kMiB);
    EXPECT_EQ(segments, 3);
  }
  EXPECT_EQ(segments, 0);
}

// Chunks in use never overlap, in any order of calls, and the byte counts add up.
TEST(CachingAllocator, RandomCallsNeverOverlap) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::mt19937_64 random(7);
  std::map<std::byte*, std::size_t> live;
  std::int64_t live_bytes = 0;
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const std::size_t bytes = random() % (random() % 4 == 0 ? 24 * kMiB : 8192);
      std::byte* pointer = allocator.allocate(bytes);
      ASSERT_NE(pointer, nullptr);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % CachingAllocator::kAlignment, 0u);
      const auto next = live.lower_bound(pointer);
      if (next != live.end()) {
        ASSERT_LE(pointer + bytes, next->first);
      }
      if (next != live.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, pointer);
      }
      live[pointer] = std::max<std::size_t>(bytes, 1);
      live_bytes += static_cast<std::int64_t>(CachingAllocator::rounded(bytes));
    } else {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      live_bytes -= static_cast<std::int64_t>(CachingAllocator::rounded(victim->second));
      allocator.free(victim->first);
      live.erase(victim);
    }
    ASSERT_GE(allocator.allocated_bytes(), live_bytes);  // a remainder too small to split stays with its chunk
    ASSERT_GE(allocator.reserved_bytes(), allocator.allocated_bytes());
  }
  for (const auto& [pointer, bytes] : live) allocator.free(pointer);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
  allocator.release_cached();
  EXPECT_EQ(segments, 0);
}

TEST(CachingAllocator, PoolsNeverShareASegment) {
  int segments = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments));
  std::byte* const own = allocator.allocate(4 * kMiB);
  std::byte* const gathered = allocator.allocate(4 * kMiB, Pool::kGathered);
  EXPECT_EQ(segments, 2);
  EXPECT_EQ(allocator.reserved_bytes(), static_cast<std::int64_t>(40 * kMiB));
  allocator.free(own);
  EXPECT_NE(allocator.allocate(16 * kMiB, Pool::kGathered), own);
  EXPECT_EQ(segments, 2);
  allocator.free(gathered);
  EXPECT_EQ(allocator.allocate(4 * kMiB), own);
  EXPECT_NE(allocator.allocate(4, Pool::kGathered), allocator.allocate(4));
  EXPECT_EQ(segments, 4);
}

// Two ranks make the same calls, and their segments have different addresses and distances.
TEST(CachingAllocator, EqualCallsGiveEqualPlacesWhereverSegmentsLie) {
  int up = 0, down = 0;
  CachingAllocator first(std::make_unique<CountingSource>(up));
  CachingAllocator second(std::make_unique<CountingSource>(down, 0, true));
  std::mt19937_64 random(11);
  std::vector<std::pair<std::byte*, std::byte*>> live;
  std::map<std::byte*, std::byte*> seen;  // maps each address of the first to the second's
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const std::size_t bytes = (random() % 4 == 0 ? 1 + random() % 6 : 0) * 4 * kMiB + random() % 4 * 512;
      const Pool pool = random() % 2 == 0 ? Pool::kOwn : Pool::kGathered;
      live.emplace_back(first.allocate(bytes, pool), second.allocate(bytes, pool));
      const auto [place, fresh] = seen.insert(live.back());
      ASSERT_EQ(place->second, live.back().second) << "call " << i;
    } else {
      const std::size_t victim = random() % live.size();
      first.free(live[victim].first);
      second.free(live[victim].second);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    ASSERT_EQ(first.reserved_bytes(), second.reserved_bytes());
  }
}

TEST(CachingAllocator, OneCapacityBoundsAllPools) {
  int segments = 0, shared = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments), 100 * kMiB);
  allocator.gather_from(std::make_unique<CountingSource>(shared));
  EXPECT_NE(allocator.allocate(60 * kMiB), nullptr);
  EXPECT_EQ(allocator.allocate(60 * kMiB, Pool::kGathered), nullptr);
  EXPECT_NE(allocator.allocate(40 * kMiB, Pool::kGathered), nullptr);
  EXPECT_EQ(allocator.allocate(1), nullptr);
  EXPECT_EQ(segments, 1);
  EXPECT_EQ(shared, 1);
  EXPECT_EQ(allocator.reserved_bytes(), static_cast<std::int64_t>(100 * kMiB));
}

// A request for the own pool keeps the cached segments of the gathering pool. A request for the gathering pool returns
// the cached segments of both.
TEST(CachingAllocator, OnlyARequestForTheGatheringPoolReturnsItsCachedSegments) {
  int segments = 0, shared = 0;
  CachingAllocator allocator(std::make_unique<CountingSource>(segments), 100 * kMiB);
  allocator.gather_from(std::make_unique<CountingSource>(shared));
  allocator.free(allocator.allocate(60 * kMiB, Pool::kGathered));
  EXPECT_EQ(allocator.allocate(80 * kMiB), nullptr);
  allocator.release_cached();
  EXPECT_EQ(shared, 1);
  allocator.free(allocator.allocate(40 * kMiB));
  EXPECT_NE(allocator.allocate(80 * kMiB, Pool::kGathered), nullptr);
  EXPECT_EQ(shared, 1);
  EXPECT_EQ(segments, 0);
}

// Other ranks may hold segments until they have returned them too, so the allocator settles in between.
TEST(CachingAllocator, SettlesAfterReturningSegmentsAndBeforeReservingAgain) {
  class Logged final : public SegmentSource {
   public:
    explicit Logged(std::vector<std::string>& log) : log_(log) {}
    std::byte* reserve(std::size_t bytes) override {
      log_.push_back("reserve");
      return source_.reserve(bytes);
    }
    void release(std::byte* segment, std::size_t bytes) noexcept override {
      log_.push_back("release");
      source_.release(segment, bytes);
    }
    void settle() override { log_.push_back("settle"); }

   private:
    std::vector<std::string>& log_;
    int live_ = 0;
    CountingSource source_{live_, 64 * kMiB};
  };
  std::vector<std::string> own, gathered;
  CachingAllocator allocator(std::make_unique<Logged>(own));
  allocator.gather_from(std::make_unique<Logged>(gathered));
  allocator.free(allocator.allocate(40 * kMiB, Pool::kGathered));
  EXPECT_NE(allocator.allocate(50 * kMiB, Pool::kGathered), nullptr);
  EXPECT_EQ(gathered, (std::vector<std::string>{"reserve", "reserve", "release", "settle", "reserve"}));
  EXPECT_TRUE(own.empty());
}

TEST(CachingAllocator, SourceMayBeReplacedWhileItsBlocksLive) {
  int segments = 0, shared = 0;
  {
    CachingAllocator allocator(std::make_unique<CountingSource>(segments));
    std::byte* const before = allocator.allocate(4 * kMiB, Pool::kGathered);
    allocator.gather_from(std::make_unique<CountingSource>(shared, 0, true));
    EXPECT_EQ(segments, 1);
    std::byte* const kept = allocator.allocate(4 * kMiB, Pool::kGathered);
    std::byte* const beside = allocator.allocate(4 * kMiB, Pool::kGathered);
    allocator.free(allocator.allocate(30 * kMiB, Pool::kGathered));
    allocator.free(before);
    EXPECT_EQ(segments, 0) << "memory that ranks do not reserve together is of no use here";
    EXPECT_EQ(shared, 2);
    allocator.gather_from(nullptr);
    EXPECT_EQ(shared, 1) << "what is free goes at once";
    EXPECT_NE(allocator.allocate(4 * kMiB, Pool::kGathered), nullptr);
    EXPECT_EQ(segments, 1) << "what is left serves no further request";
    allocator.free(kept);
    EXPECT_EQ(shared, 1);
    allocator.free(beside);
    EXPECT_EQ(shared, 0);
    EXPECT_EQ(allocator.reserved_bytes(), static_cast<std::int64_t>(20 * kMiB));
    allocator.gather_from(std::make_unique<CountingSource>(shared, 0, true));
    allocator.allocate(4 * kMiB, Pool::kGathered);
    allocator.gather_from(nullptr);
    EXPECT_EQ(shared, 1);
  }
  EXPECT_EQ(shared, 0) << "a leak goes with the allocator";
  EXPECT_EQ(segments, 0);
}

}  // namespace
}  // namespace fp8lab
