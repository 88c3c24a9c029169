#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"

// Started by mpirun or launch_ranks: a rank that is a process computes, bit for bit, what it computes as a thread.
namespace fp8lab::comm_test {
namespace {

constexpr std::uint64_t kSeed = 77;

std::uint64_t draw(std::uint64_t step, std::uint64_t what) {
  return reference::scramble(reference::scramble(kSeed + step) ^ what);
}

/// Arbitrary bits: NaNs, infinities and subnormals among them.
std::vector<std::byte> any_bits(std::uint64_t step, int rank, std::int64_t bytes) {
  return test_bytes(kSeed + step, rank, bytes);
}

/// Values of moderate size, so that sums are mostly finite and rounded.
std::vector<std::byte> values(std::uint64_t step, int rank, std::int64_t bytes) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes));
  const std::vector<float> floats = test_values(kSeed + step, rank, bytes / 4);
  if (!floats.empty()) std::memcpy(all.data(), floats.data(), 4 * floats.size());
  return all;
}

/// Runs a sequence of collectives that depends only on the seed; returns all that `group`'s rank received.
std::vector<std::byte> run_collectives(ProcessGroup& group) {
  constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kI32, DType::kI64};
  std::vector<std::byte> received;
  for (std::uint64_t step = 0; step < 60; ++step) {
    const DType dtype = kTypes[draw(step, 0) % kTypes.size()];
    const auto element = static_cast<std::int64_t>(size_bytes(dtype));
    std::vector<std::int64_t> offsets = {0};
    for (int rank = 0; rank < group.size(); ++rank)
      offsets.push_back(offsets.back() +
                        static_cast<std::int64_t>(draw(step, 10 + static_cast<std::uint64_t>(rank)) % 700));
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::int64_t own = offsets[rank + 1] - offsets[rank];
    std::vector<std::byte> input = draw(step, 1) % 2 == 0 ? any_bits(step, group.rank(), offsets.back() * element)
                                                          : values(step, group.rank(), offsets.back() * element);
    std::vector<std::byte> result(static_cast<std::size_t>(own * element));
    switch (draw(step, 2) % 5) {
      case 0: {
        result.resize(static_cast<std::size_t>(offsets.back()));
        const GatherPart part{.from = input.data(), .to = result.data(), .offsets_bytes = offsets};
        group.all_gather({&part, 1}, "gather");
        break;
      }
      case 1: {
        const ScatterPart part{.from = input.data(), .to = result.data(), .offsets_elems = offsets, .dtype = dtype};
        group.reduce_scatter({&part, 1}, "scatter");
        break;
      }
      case 2:
      case 3: {
        const ReduceOp op = draw(step, 2) % 5 == 2 ? ReduceOp::kSum : ReduceOp::kMax;
        const std::array<ReducePart, 2> parts = {
            ReducePart{.data = input.data(), .elems = offsets[1], .dtype = dtype},
            ReducePart{
                .data = input.data() + offsets[1] * element, .elems = offsets.back() - offsets[1], .dtype = dtype}};
        group.all_reduce(op, parts, "reduce");
        result = input;
        break;
      }
      default: {
        const BroadcastPart part{.data = input.data(), .bytes = static_cast<std::int64_t>(input.size())};
        group.broadcast(static_cast<int>(draw(step, 3) % static_cast<std::uint64_t>(group.size())), {&part, 1}, "send");
        result = input;
      }
    }
    received.insert(received.end(), result.begin(), result.end());
    std::vector<std::byte> passed_on(input.size());
    const int shift =
        group.size() == 1 ? 1 : 1 + static_cast<int>(draw(step, 4) % static_cast<std::uint64_t>(group.size() - 1));
    const ExchangePart part{
        .from = input.data(), .to = passed_on.data(), .bytes = static_cast<std::int64_t>(input.size())};
    group.ring_exchange(shift, {&part, 1}, "keys");
    received.insert(received.end(), passed_on.begin(), passed_on.end());
    std::vector<std::int64_t> sizes;
    std::int64_t incoming = 0;
    for (int s = 0; s < group.size(); ++s)
      for (int d = 0; d < group.size(); ++d) {
        sizes.push_back(static_cast<std::int64_t>(draw(step, static_cast<std::uint64_t>(5 + s * group.size() + d)) %
                                                  static_cast<std::uint64_t>(std::ssize(input) / group.size() + 1)));
        if (d == group.rank()) incoming += sizes.back();
      }
    std::vector<std::byte> tokens(static_cast<std::size_t>(incoming));
    const AllToAllPart sent{.from = input.data(), .to = tokens.data(), .bytes = sizes};
    group.all_to_all({&sent, 1}, "tokens");
    received.insert(received.end(), tokens.begin(), tokens.end());
  }
  return received;
}

TEST(Equality, ProcessesComputeWhatThreadsCompute) {
  const int ranks = launched_ranks();
  ASSERT_GT(ranks, 0) << "start this with mpirun or launch_ranks";
  std::vector<std::vector<std::byte>> by_thread(static_cast<std::size_t>(ranks));
  run_ranks("in_process", {.ranks = ranks},
            [&](ProcessGroup& group) { by_thread[static_cast<std::size_t>(group.rank())] = run_collectives(group); });
  on_ranks(ranks, [&](ProcessGroup& group) {
    const std::vector<std::byte> received = run_collectives(group);
    EXPECT_GT(received.size(), 10'000u);
    EXPECT_TRUE(received == by_thread[static_cast<std::size_t>(group.rank())]) << "rank " << group.rank();
  });
}

TEST(Equality, RunsOfAnotherSizeAreRefused) {
  const std::string ranks = std::to_string(launched_ranks());
  const std::string more = std::to_string(launched_ranks() + 1);
  RunOptions options = run_options(launched_ranks());
  ++options.ranks;
  EXPECT_EQ(error_of([&] { run_ranks(row(), options, [](ProcessGroup&) {}); }),
            "a run of " + more + " ranks over " + ranks +
                (row() == "mpi" ? " MPI processes: start it with mpirun -n "
                                : " launched processes: start it with torchrun --nproc-per-node ") +
                more);
}

TEST(Equality, OnlyTheFirstThreadMayUseMpi) {
  if (row() != "mpi") GTEST_SKIP() << "sockets may be used by any thread";
  on_ranks(launched_ranks(), [](ProcessGroup& group) { group.barrier("x"); });
  std::string error;
  std::jthread([&] { error = error_of([] { on_ranks(launched_ranks(), [](ProcessGroup&) {}); }); }).join();
  EXPECT_EQ(error,
            "MPI was started by another thread; all runs over MPI must come from that one (MPI_THREAD_FUNNELED)");
}

}  // namespace
}  // namespace fp8lab::comm_test
