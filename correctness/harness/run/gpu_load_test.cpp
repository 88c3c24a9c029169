#include "harness/run/gpu_load.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/run/fake_cells.h"
#include "harness/run/fake_command.h"
#include "harness/run/runner.h"

// Arms are divided among GPUs by what runs on each and by the memory that they need.
namespace fp8lab {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

GpuNeed need(int ranks, double rank_gib) {
  return {.ranks = ranks, .rank_bytes = rank_gib * kGiB, .process_bytes = 0.5 * kGiB};
}

TEST(GpuLoad, StartsWhereTheFewestArmsRun) {
  GpuLoad load({10 * kGiB, 10 * kGiB, 10 * kGiB});
  EXPECT_EQ(load.place(need(1, 1)), 0);
  load.add(0, need(1, 1));
  EXPECT_EQ(load.place(need(1, 1)), 1);
  load.add(1, need(1, 1));
  EXPECT_EQ(load.place(need(2, 1)), 1) << "GPUs 1 and 2 run one arm, 0 and 1 two";
  load.add(1, need(2, 1));
  EXPECT_EQ(load.place(need(2, 1)), 2) << "the ranks go on from the last GPU to the first";
}

TEST(GpuLoad, RanksShareGpusEvenly) {
  GpuLoad load({10 * kGiB, 10 * kGiB});
  load.add(1, need(3, 2));  // two ranks on GPU 1, one on GPU 0
  EXPECT_EQ(load.place(need(1, 7)), 0);
  EXPECT_EQ(load.place(need(1, 7.1)), std::nullopt);
  load.add(0, need(1, 7));
  EXPECT_EQ(load.place(need(1, 5)), 1);
  EXPECT_EQ(load.place(need(1, 5.1)), std::nullopt);
}

TEST(GpuLoad, IdleProcessesTakeMemoryOnEveryGpu) {
  GpuLoad load({10 * kGiB, 10 * kGiB});
  EXPECT_EQ(load.place(need(1, 9.5)), 0);
  load.add_idle(need(1, 9.5));
  EXPECT_EQ(load.place(need(1, 9.5)), std::nullopt);
  EXPECT_EQ(load.place(need(1, 9)), 0);
}

TEST(GpuLoad, RunsNoMoreThanSoManyArmsOnAGpu) {
  GpuLoad load({1000 * kGiB, 1000 * kGiB});
  for (int i = 0; i < 2 * kMostArmsPerGpu; ++i) {
    const std::optional<int> first = load.place(need(1, 1));
    ASSERT_TRUE(first.has_value()) << i;
    load.add(*first, need(1, 1));
  }
  EXPECT_EQ(load.place(need(1, 1)), std::nullopt);
}

TEST(VisibleGpus, BeginWithTheFirst) {
  EXPECT_EQ(visible_gpus(nullptr, 3, 0), "0,1,2");
  EXPECT_EQ(visible_gpus(nullptr, 3, 2), "2,0,1");
  EXPECT_EQ(visible_gpus("5,3", 2, 1), "3,5");
  EXPECT_EQ(visible_gpus("GPU-a,GPU-b,-1,7", 2, 1), "GPU-b,GPU-a") << "those after an invalid one are invisible";
}

TEST(GpuLoad, ProcessesSeeTheGpuOfTheirFirstRankFirst) {
  Vocabulary vocabulary = sample::vocabulary();
  for (Term& device : vocabulary.devices) device.gpu_memory = [] { return std::vector{10 * kGiB, 10 * kGiB}; };
  RunnerOptions options;
  options.jobs = 4;
  options.command = sample::fake_command();
  std::vector<PlannedCell> cells;
  for (const char* name : {"after_gpus#1", "after_gpus#2", "after_gpus#3", "after_gpus#4"})
    cells.push_back(sample::fake_cell(name));
  std::set<std::string> seen;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) {
    for (const std::string& note : record.arms.at(Arm::kAfter).notes) seen.insert(note);
  };
  EXPECT_EQ(run_cells(cells, vocabulary, options, events), 0);
  EXPECT_EQ(seen, (std::set<std::string>{"0,1", "1,0"}));
}

}  // namespace
}  // namespace fp8lab
