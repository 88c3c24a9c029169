#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/ranks.h"
#include "core/heap_allocations.h"

// Collectives allocate nothing from the heap.
namespace fp8lab::comm_test {
namespace {

/// Heap allocations of all ranks of `row` in a hundred rounds of every collective, after a first round.
std::int64_t steady_allocations(std::string_view row, RunOptions options, bool moves_data) {
  options.moves_data = moves_data;
  std::atomic<std::int64_t> counted = 0;
  run_ranks(row, options, [&](ProcessGroup& group) {
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
    const ExchangePart exchanged{.from = source, .to = target, .bytes = offsets.back()};
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size() * group.size()));
    for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<std::int64_t>(i) % 4;
    const AllToAllPart tokens{.from = source, .to = target, .bytes = sizes};
    const auto round = [&] {
      group.all_gather(gathers, "a label far too long for the small-string optimisation");
      group.reduce_scatter({&scatter, 1}, "g");
      group.all_reduce(ReduceOp::kMax, {&reduced, 1}, "amax");
      group.broadcast(0, {&sent, 1}, "state");
      group.ring_exchange(1, {&exchanged, 1}, "keys");
      group.all_to_all({&tokens, 1}, "tokens");
      group.barrier("x");
    };
    round();
    const std::int64_t before = heap_allocations();
    for (int i = 0; i < 100; ++i) round();
    counted += heap_allocations() - before;
    // A rank that still waits in its last round would abort if another one left: no rank leaves before all have
    // counted.
    group.barrier("counted");
  });
  return counted;
}

TEST(Allocation, RepeatedCollectivesAllocateNothing) {
  if (launched_ranks() > 0) {
    // Counted in this process; MPI's own allocations come from malloc and are not counted.
    EXPECT_EQ(steady_allocations(row(), run_options(launched_ranks()), true), 0);
    return;
  }
  for (const int ranks : {1, 4, 16}) {
    EXPECT_EQ(steady_allocations("in_process", run_options(ranks), true), 0) << ranks << " ranks";
    EXPECT_EQ(steady_allocations("in_process", run_options(ranks), false), 0) << ranks << " ranks";
    EXPECT_EQ(steady_allocations("simulated", run_options(ranks), false), 0) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace fp8lab::comm_test
