#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "comm/ranks.h"

// A binary of its own: it replaces operator new, to show that collectives leave it alone.
namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Not inlined: g++ would see free() meet a pointer from `new` and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace fp8lab::comm_test {
namespace {

/// Allocations by all ranks of `row` in a hundred rounds of every collective, after a first round.
std::int64_t steady_allocations(std::string_view row, int ranks, bool moves_data) {
  std::int64_t counted = 0;
  run_ranks(row, {.ranks = ranks, .moves_data = moves_data}, [&](ProcessGroup& group) {
    const std::vector<std::int64_t> offsets = kSharings[1].offsets(group.size());
    std::vector<float> from(static_cast<std::size_t>(offsets.back()));
    std::vector<float> to(static_cast<std::size_t>(offsets.back()));
    auto* const source = reinterpret_cast<std::byte*>(from.data());
    auto* const target = reinterpret_cast<std::byte*>(to.data());
    const GatherPart gather{.from = source, .to = target, .offsets_bytes = offsets};
    const std::array<GatherPart, 3> gathers = {gather, gather, gather};
    const ScatterPart scatter{.from = source, .to = target, .offsets_elems = offsets};
    const ReducePart reduced{.data = target, .elems = offsets.back()};
    const BroadcastPart sent{.data = target, .bytes = offsets.back()};
    const auto round = [&] {
      group.all_gather(gathers, "a label far too long for the small-string optimisation");
      group.reduce_scatter({&scatter, 1}, "g");
      group.all_reduce(ReduceOp::kMax, {&reduced, 1}, "amax");
      group.broadcast(0, {&sent, 1}, "state");
      group.barrier("x");
    };
    round();
    group.barrier("start");
    const std::int64_t before = allocations;
    group.barrier("counting");
    for (int i = 0; i < 100; ++i) round();
    group.barrier("end");
    if (group.rank() == 0) counted = allocations - before;
    group.barrier("read");
  });
  return counted;
}

TEST(Allocation, CollectivesAllocateNothing) {
  if (mpi_ranks() > 0) {
    // Of this process; what MPI allocates for itself comes from malloc.
    EXPECT_EQ(steady_allocations("mpi", mpi_ranks(), true), 0);
    return;
  }
  for (const int ranks : {1, 4, 16}) {
    EXPECT_EQ(steady_allocations("in_process", ranks, true), 0) << ranks << " ranks";
    EXPECT_EQ(steady_allocations("in_process", ranks, false), 0) << ranks << " ranks";
    EXPECT_EQ(steady_allocations("simulated", ranks, false), 0) << ranks << " ranks";
  }
}

TEST(Allocation, IsNoticed) {
  const std::int64_t before = allocations;
  std::string label(100, 'x');
  EXPECT_EQ(allocations - before, 1) << label;
}

}  // namespace
}  // namespace fp8lab::comm_test
