#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/run/fake_cells.h"
#include "harness/run/fake_command.h"
#include "harness/run/runner.h"
#include "harness/scenario/sample.h"

// Cells on a GPU of which there is not enough memory for all at once.
namespace fp8lab {
namespace {

Vocabulary with_a_gpu_of_ten_gibibytes() {
  Vocabulary vocabulary = sample::vocabulary();
  for (Term& device : vocabulary.devices) device.gpu_memory = [] { return std::vector{std::int64_t{10} << 30}; };
  return vocabulary;
}

TEST(RunnerOnGpus, CellsShareTheMemoryOfTheirDevice) {
  const Vocabulary vocabulary = with_a_gpu_of_ten_gibibytes();
  // The order in which cells finish if each arm is predicted to need `gib`: if there is room in addition to the hanging
  // one, the quick one finishes first.
  const auto order_of = [&](double gib, const std::vector<std::string>& measure) {
    RunnerOptions options;
    options.jobs = 4;
    options.timeout_s = 2.0;
    options.command = sample::fake_command();
    options.predict = [gib](const CellConfig&, Arm) {
      return std::map<std::string, double>{{"memory.peak_bytes", gib * (1 << 30)}};
    };
    std::vector<std::string> order;
    RunnerEvents events;
    events.finished = [&](CellRecord&& record) { order.push_back(record.config.id); };
    std::vector<PlannedCell> cells{sample::fake_cell("before_hang"), sample::fake_cell("quick")};
    for (PlannedCell& cell : cells) cell.config.measure = measure;
    run_cells(cells, vocabulary, options, events);
    return order;
  };
  const std::vector<std::string> together{"quick", "before_hang"}, apart{"before_hang", "quick"};
  EXPECT_EQ(order_of(1.0, {"memory"}), together);
  EXPECT_EQ(order_of(6.0, {"memory"}), apart);
  EXPECT_EQ(order_of(1.0, {"memory", "parity"}), together);
  EXPECT_EQ(order_of(2.0, {"memory"}), together);
  EXPECT_EQ(order_of(2.0, {"memory", "parity"}), apart);  // parity holds two more runs
  EXPECT_EQ(order_of(9.2, {"memory"}), apart);            // with idle processes more than there is
}

TEST(RunnerOnGpus, SmallCellsGoAheadOfOneThatWaitsForMemory) {
  const Vocabulary vocabulary = with_a_gpu_of_ten_gibibytes();
  RunnerOptions options;
  options.jobs = 4;
  options.timeout_s = 2.0;
  options.command = sample::fake_command();
  options.predict = [](const CellConfig& cell, Arm) {
    const bool large = cell.id != "quick#small" && cell.id != "quick#timed";
    return std::map<std::string, double>{{"memory.peak_bytes", (large ? 6.0 : 1.0) * (1 << 30)}};
  };
  std::vector<std::string> order;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) { order.push_back(record.config.id); };
  std::vector<PlannedCell> cells;
  for (const char* const id : {"before_hang", "quick#large", "quick#second_large", "quick#small", "quick#timed"})
    cells.push_back(sample::fake_cell(id));
  cells.back().config.measure = {"time"};  // it runs alone, so not before those that wait
  run_cells(cells, vocabulary, options, events);
  EXPECT_EQ(order, (std::vector<std::string>{"quick#small", "before_hang", "quick#large", "quick#second_large",
                                             "quick#timed"}));
}

TEST(RunnerOnGpus, CellThatTheDeviceCanNeverHold_IsSkippedWithBothFigures) {
  const Vocabulary vocabulary = with_a_gpu_of_ten_gibibytes();
  double gibibytes = 9.3125;  // less than the device has, and more with what an allocator reserves over it
  RunnerOptions options;
  options.command = sample::fake_command();
  options.predict = [&](const CellConfig&, Arm arm) {
    return std::map<std::string, double>{{"memory.peak_bytes", arm == Arm::kBefore ? gibibytes * (1 << 30) : 1.0}};
  };
  std::vector<CellRecord> records;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) { records.push_back(std::move(record)); };
  PlannedCell says = sample::fake_cell("before_oom");  // a cell that names how its arm ends runs
  Expectation ends;
  ends.side = Side::kBefore;
  ends.comparison = Comparison::kEnds;
  ends.status = "out_of_memory";
  says.expect = {ends};
  PlannedCell limited = sample::fake_cell("limited");
  limited.config.capacity = 100;
  run_cells({sample::fake_cell("quick"), says, limited}, vocabulary, options, events);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].verdict, Verdict::kSkipped);
  EXPECT_EQ(records[0].reason,
            "its before arm needs 9.41 GiB (10,099,212,944 B) of device memory, and the device has 9.38 GiB "
            "(10,066,329,600 B) in addition to its driver's");
  EXPECT_EQ(records[1].arms.at(Arm::kBefore).status, "out_of_memory");
  EXPECT_NE(records[2].verdict, Verdict::kSkipped);
  gibibytes = 9.25;
  run_cells({sample::fake_cell("quick")}, vocabulary, options, events);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_NE(records[3].verdict, Verdict::kSkipped);
}

}  // namespace
}  // namespace fp8lab
