#include "core/heap_allocations.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

// The counters of heap allocations count every form of `new`, per thread.
namespace fp8lab {
namespace {

struct alignas(256) Wide {
  char bytes[256];
};

std::int64_t count(const std::function<void()>& work) {
  const std::int64_t before = heap_allocations();
  work();
  return heap_allocations() - before;
}

// Every allocation is stored here, so that no compiler removes it.
void* volatile kept = nullptr;

TEST(HeapAllocations, CountEveryForm) {
  const auto keep = [](auto* block) {
    kept = block;
    return block;
  };
  EXPECT_EQ(count([&] { delete keep(new int(1)); }), 1);
  EXPECT_EQ(count([&] { delete[] keep(new int[1000]); }), 1);
  EXPECT_EQ(count([&] { delete keep(new (std::nothrow) int(1)); }), 1);
  EXPECT_EQ(count([&] { delete keep(new Wide); }), 1);
  EXPECT_EQ(count([&] { delete[] keep(new Wide[3]); }), 1);
  EXPECT_EQ(count([&] { keep(std::vector<int>(5).data()); }), 1);
  EXPECT_EQ(count([] {}), 0);
}

TEST(HeapAllocations, AreAligned) {
  const auto wide = std::make_unique<Wide>();
  kept = wide.get();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wide.get()) % alignof(Wide), 0u);
}

TEST(HeapAllocations, AreCountedPerThread) {
  std::int64_t theirs = 0;
  std::int64_t mine = 0;
  std::thread other([&] { theirs = count([] { kept = std::vector<int>(7).data(); }); });
  mine = count([&] { other.join(); });
  EXPECT_EQ(theirs, 1);
  EXPECT_EQ(mine, 0);
}

}  // namespace
}  // namespace fp8lab
