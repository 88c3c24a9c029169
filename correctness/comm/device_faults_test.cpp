#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/device_ranks.h"

// Runs that fail over device memory end as they do over host memory: in time, with one cause.
namespace fp8lab::comm_test {
namespace {

class DeviceFaults : public testing::TestWithParam<int> {};
std::vector<int> several_ranks() {
  std::vector<int> counts = rank_counts();
  std::erase(counts, 1);
  return counts;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceFaults);
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceFaults, testing::ValuesIn(several_ranks()), testing::PrintToStringParamName());

TEST_P(DeviceFaults, DeadRankIsNamedOnAllOthers) {
  const int dead = GetParam() - 1;
  const std::string name = "rank " + std::to_string(dead);
  EXPECT_EQ(error_of([&] {
              on_ranks(GetParam(), [&](ProcessGroup& world) {
                Gpu gpu(world);
                const Tensor data = gpu.empty(64);
                const ReducePart part{.data = at(data), .elems = 16};
                gpu.group().all_reduce(ReduceOp::kSum, {&part, 1}, "amax");
                if (world.rank() == dead) fail("layers.3: no memory left");
                EXPECT_EQ(error_of([&] { gpu.group().all_reduce(ReduceOp::kSum, {&part, 1}, "last"); }),
                          "all_reduce sum 'last' (#2: 1 part, 64 bytes) of group 'world' cannot complete: " + name +
                              " died: layers.3: no memory left");
                EXPECT_THROW(gpu.group().barrier("later"), GroupAborted);
              });
            }),
            name + ": layers.3: no memory left");
}

TEST_P(DeviceFaults, LateRankIsNamedAtTheTimeout) {
  RunOptions options = run_options(GetParam());
  options.timeout = std::chrono::seconds(1);
  const int late = GetParam() - 1;
  std::atomic<int> gave_up = 0;
  if (launched_ranks() > 0) GTEST_SKIP() << "the test cannot see when another process gave up";
  const std::string error = error_of([&] {
    run_ranks(row(), options, [&](ProcessGroup& world) {
      Gpu gpu(world);
      const Tensor data = gpu.empty(64);
      const ReducePart part{.data = at(data), .elems = 16};
      gpu.group().all_reduce(ReduceOp::kSum, {&part, 1}, "amax");
      while (world.rank() == late && gave_up < late) std::this_thread::yield();
      EXPECT_THROW(gpu.group().all_reduce(ReduceOp::kSum, {&part, 1}, "next"), GroupAborted);
      ++gave_up;
    });
  });
  EXPECT_TRUE(
      error.starts_with("rank " + std::to_string(late) +
                        " did not come to all_reduce sum 'next' (#2: 1 part, 64 bytes) of group 'world' within 1 s"))
      << error;
}

// Rank 1's launch fails while its copy still reads rank 0's buffer. Rank 0 overwrites that buffer as soon as the
// collective has returned.
TEST(DeviceFault, LaunchThatFailsHalfwayStillReadsBytesFromBeforeTheCall) {
  if (on_gpu() || launched_ranks() > 0) GTEST_SKIP() << "the fault is injected into a device of threads on the host";
  const std::vector<std::byte> mine(4096, std::byte{1}), anew(4096, std::byte{9});
  run_ranks("in_process", run_options(2), [&](ProcessGroup& world) {
    Gpu gpu(world);
    const Tensor from = gpu.bytes(mine), to = gpu.empty(8192);
    const std::vector<std::int64_t> offsets = {0, 4096, 8192};
    const GatherPart part{.from = at(from), .to = at(to), .offsets_bytes = offsets};
    if (world.rank() == 0) {
      gpu.group().all_gather({&part, 1}, "w");
      gpu.device().write_bytes(from, anew);
      return;
    }
    // Enough work that rank 0 could overwrite its buffer meanwhile, if rank 1's failure did not wait for the copy.
    const Tensor large = gpu.empty(1 << 20), other = gpu.empty(1 << 20);
    LateFaults& faults = dynamic_cast<LateGpu&>(gpu.device()).peer_access()->faults;
    faults.before_copy = [&] {
      for (int i = 0; i < 400; ++i) gpu.device().copy_bytes(large, other);
    };
    faults.after_copy = [] { fail("the launch went wrong"); };
    EXPECT_EQ(error_of([&] { gpu.group().all_gather({&part, 1}, "w"); }), "the launch went wrong");
    const std::vector<std::byte> seen = gpu.read(to);
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), seen.begin())) << "rank 0's bytes were read after the call";
  });
}

// Rank 1's launch fails at once, while rank 0's copy to rank 1 is still behind other work. Rank 1 uses its buffer again
// as soon as it has the error.
TEST(DeviceFault, LaunchThatFailsWaitsForTheCopiesOfOthers) {
  if (on_gpu() || launched_ranks() > 0) GTEST_SKIP() << "the fault is injected into a device of threads on the host";
  const std::vector<std::byte> mine(4096, std::byte{1}), anew(8192, std::byte{9});
  std::atomic<bool> copied = false;
  run_ranks("in_process", run_options(2), [&](ProcessGroup& world) {
    Gpu gpu(world);
    const Tensor from = gpu.bytes(mine), to = gpu.empty(8192);
    const std::vector<std::int64_t> offsets = {0, 4096, 8192};
    const GatherPart part{.from = at(from), .to = at(to), .offsets_bytes = offsets};
    LateFaults& faults = dynamic_cast<LateGpu&>(gpu.device()).peer_access()->faults;
    if (world.rank() == 0) {
      const Tensor large = gpu.empty(1 << 20), other = gpu.empty(1 << 20);
      faults.before_copy = [&] {
        for (int i = 0; i < 400; ++i) gpu.device().copy_bytes(large, other);
      };
      gpu.group().all_gather({&part, 1}, "w");
      gpu.device().synchronize();
      copied = true;
      return;
    }
    faults.after_copy = [] { fail("the launch went wrong"); };
    EXPECT_EQ(error_of([&] { gpu.group().all_gather({&part, 1}, "w"); }), "the launch went wrong");
    gpu.device().write_bytes(to, anew);
    while (!copied) std::this_thread::yield();
    EXPECT_EQ(gpu.read(to), anew) << "rank 0's bytes came after the call";
  });
}

TEST_P(DeviceFaults, DivergingCallsAreBothNamed) {
  const std::string error = error_of([&] {
    on_ranks(GetParam(), [&](ProcessGroup& world) {
      Gpu gpu(world);
      const Tensor data = gpu.empty(64);
      const ReducePart part{.data = at(data), .elems = world.rank() == 0 ? 16 : 8};
      EXPECT_THROW(gpu.group().all_reduce(ReduceOp::kSum, {&part, 1}, "amax"), GroupAborted);
    });
  });
  EXPECT_EQ(
      error,
      "ranks of group 'world' issue different collectives: rank 0 calls all_reduce sum 'amax' (#1: 1 part, 64 bytes), "
      "rank 1 calls all_reduce sum 'amax' (#1: 1 part, 32 bytes)");
}

TEST_P(DeviceFaults, RanksOnDevicesOfDifferentNamesAreRefused) {
  const std::string error = error_of([&] {
    on_ranks(GetParam(), [&](ProcessGroup& world) {
      const std::unique_ptr<Device> device = world.rank() == 0 ? open_rank_device(world) : open_device("cpu");
      EXPECT_THROW(world.for_device(*device), GroupAborted);
    });
  });
  EXPECT_EQ(error.find("ranks of group 'world' issue different collectives: rank 0 calls attach '"), 0u) << error;
}

}  // namespace
}  // namespace fp8lab::comm_test
