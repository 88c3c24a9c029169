#include "harness/run/shared_arms.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/run/fake_cells.h"
#include "harness/run/fake_command.h"
#include "harness/run/runner.h"

// An arm that several cells need runs once, unless it fails.
namespace fp8lab {
namespace {

CellConfig some_cell() {
  CellConfig cell;
  cell.scenario = "sample";
  cell.id = "sample/training.recipe=delayed";
  cell.axes = {{"training.recipe", "delayed"}};
  cell.fix = "release_attention_tensors";
  cell.training.recipe = "delayed";
  cell.measure = {"memory"};
  return cell;
}

using Change = std::function<void(CellConfig&)>;

std::string changed_task(const Change& change, Arm arm) {
  CellConfig cell = some_cell();
  change(cell);
  return task_of(cell, arm);
}

TEST(TaskOf, DoesNotDependOnKeysThatTheArmDoesNotUse) {
  const Change names = [](CellConfig& cell) {
    cell.scenario = "other";
    cell.id = "other/seed=1";
    cell.axes = {{"seed", "1"}};
  };
  for (const Arm arm : {Arm::kBefore, Arm::kAfter, Arm::kBf16})
    EXPECT_EQ(changed_task(names, arm), task_of(some_cell(), arm));

  const Change fix = [](CellConfig& cell) { cell.fix = "release_fuser_tensors"; };
  EXPECT_NE(changed_task(fix, Arm::kBefore), task_of(some_cell(), Arm::kBefore));
  EXPECT_EQ(changed_task(fix, Arm::kAfter), task_of(some_cell(), Arm::kAfter));
  EXPECT_EQ(changed_task(fix, Arm::kBf16), task_of(some_cell(), Arm::kBf16));

  const std::vector<Change> quantization = {
      [](CellConfig& cell) { cell.training.recipe = "mxfp8"; },
      [](CellConfig& cell) { cell.training.recipe_options.amax_history_length = 3; },
      [](CellConfig& cell) { cell.training.quantized_weights = true; },
      [](CellConfig& cell) { cell.training.fused_quantize = false; },
      [](CellConfig& cell) { cell.training.initial_history_length = 3; },
      [](CellConfig& cell) { cell.training.fp8_attention = true; },
      [](CellConfig& cell) { cell.training.fp8_sums = Fp8Sums::kTensorCore; },
      [](CellConfig& cell) { cell.training.first_layers_bf16 = 1; },
      [](CellConfig& cell) { cell.training.last_layers_bf16 = 1; },
      [](CellConfig& cell) {
        cell.training.fp8_attention = true;
        cell.training.fp8_attention_backward = false;
      },
      [](CellConfig& cell) {
        cell.training.fp8_attention = true;
        cell.training.fp8_mha = true;
      },
  };
  for (const Change& change : quantization) {
    EXPECT_NE(changed_task(change, Arm::kBefore), task_of(some_cell(), Arm::kBefore));
    EXPECT_NE(changed_task(change, Arm::kAfter), task_of(some_cell(), Arm::kAfter));
    EXPECT_EQ(changed_task(change, Arm::kBf16), task_of(some_cell(), Arm::kBf16));
  }
}

TEST(TaskOf, DependsOnAllOtherKeys) {
  const std::vector<Change> changes = {
      [](CellConfig& cell) { cell.device = "meta"; },
      [](CellConfig& cell) { cell.arch = "blackwell"; },
      [](CellConfig& cell) { cell.ranks = 2; },
      [](CellConfig& cell) { cell.mesh = "2x2"; },
      [](CellConfig& cell) { cell.sharding = "none"; },
      [](CellConfig& cell) { cell.gather_ahead = true; },
      [](CellConfig& cell) { cell.reduce_dtype = "f32"; },
      [](CellConfig& cell) { cell.capacity = 1 << 30; },
      [](CellConfig& cell) { cell.model.layers = 2; },
      [](CellConfig& cell) { cell.training.seed = 5; },
      [](CellConfig& cell) { cell.training.checkpoint = "full"; },
      [](CellConfig& cell) { cell.training.deterministic = false; },
      [](CellConfig& cell) { cell.measure = {"memory", "parity"}; },
  };
  for (const Arm arm : {Arm::kBefore, Arm::kAfter, Arm::kBf16})
    for (std::size_t i = 0; i < changes.size(); ++i)
      EXPECT_NE(changed_task(changes[i], arm), task_of(some_cell(), arm)) << i;
  EXPECT_NE(task_of(some_cell(), Arm::kAfter), task_of(some_cell(), Arm::kBf16));
}

TEST(TaskOf, IsEmptyForTimedCells) {
  for (const char* group : {"time", "host"})
    EXPECT_EQ(changed_task([&](CellConfig& cell) { cell.measure = {"memory", group}; }, Arm::kAfter), "") << group;
}

/// The records of cells by name, after a run in which `task` names the task of each arm.
std::map<std::string, CellRecord> run_all(const std::vector<std::string>& names, int jobs, const TaskFunction& task) {
  RunnerOptions options;
  options.jobs = jobs;
  options.timeout_s = 2.0;
  options.command = sample::fake_command();
  options.task = task;
  std::map<std::string, CellRecord> records;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) {
    const std::string id = record.config.id;
    EXPECT_TRUE(records.emplace(id, std::move(record)).second) << id << " is reported twice";
  };
  std::vector<PlannedCell> cells;
  for (const std::string& name : names) cells.push_back(sample::fake_cell(name));
  EXPECT_EQ(run_cells(cells, sample::vocabulary(), options, events), 0);
  EXPECT_EQ(records.size(), names.size());
  return records;
}

std::string after_alone(const CellConfig&, Arm arm) { return arm == Arm::kAfter ? "after" : ""; }

/// The cell that ran the arm; all others name it.
std::string measured_by(const std::map<std::string, CellRecord>& records, Arm arm) {
  std::set<std::string> measured, named;
  for (const auto& [name, record] : records) {
    const std::string& in = record.arms.at(arm).measured_in;
    (in.empty() ? measured : named).insert(in.empty() ? name : in);
  }
  EXPECT_EQ(measured.size(), 1u);
  EXPECT_EQ(named, measured);
  return measured.empty() ? "" : *measured.begin();
}

TEST(SharedArms, RunInOneCell) {
  for (const int jobs : {1, 2, 8}) {
    const auto records = run_all({"a", "b", "c", "d"}, jobs, after_alone);
    const std::string first = measured_by(records, Arm::kAfter);
    if (jobs == 1) {
      EXPECT_EQ(first, "a");
    }
    for (const auto& [name, record] : records) {
      EXPECT_EQ(record.verdict, Verdict::kConfirmed) << name;
      EXPECT_EQ(record.arms.at(Arm::kBefore).measured_in, "");
      EXPECT_EQ(record.arms.at(Arm::kAfter).timeline_json, "{\"events\": []}");
      EXPECT_EQ(record.arms.at(Arm::kAfter).seconds, records.at(first).arms.at(Arm::kAfter).seconds);
    }
  }
}

TEST(SharedArms, CellMayShareAllOfItsArms) {
  const TaskFunction every = [](const CellConfig&, Arm arm) { return std::string(name(arm)); };
  for (const int jobs : {1, 8}) {
    const auto records = run_all({"a", "b", "c"}, jobs, every);
    for (const Arm arm : {Arm::kBefore, Arm::kAfter}) measured_by(records, arm);
    for (const auto& [name, record] : records) EXPECT_EQ(record.verdict, Verdict::kConfirmed) << name;
  }
}

// Fake arms read the name of their cell, so an arm that dies in one cell succeeds in the next. After a failure all
// cells that wait for it run the arm themselves, at the same time: five that hang for two seconds each end within ten.
TEST(SharedArms, FailedResultIsNotShared) {
  for (const int jobs : {1, 8}) {
    const auto records = run_all({"after_segv", "b", "c"}, jobs, after_alone);
    EXPECT_EQ(records.at("after_segv").verdict, Verdict::kCrashed);
    EXPECT_EQ(records.at("b").verdict, Verdict::kConfirmed);
    EXPECT_EQ(records.at("c").verdict, Verdict::kConfirmed);
    EXPECT_NE(records.at("b").arms.at(Arm::kAfter).measured_in, "after_segv");
  }
  const auto start = Clock::now();
  const std::vector<std::string> hanging{"after_hang#1", "after_hang#2", "after_hang#3", "after_hang#4",
                                         "after_hang#5"};
  for (const auto& [name, record] : run_all(hanging, 8, after_alone))
    EXPECT_EQ(record.verdict, Verdict::kTimeout) << name;
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
}

TEST(SharedArms, MoreThanTheMostKeptResults_TheOldestIsDropped) {
  std::vector<PlannedCell> cells;
  const std::size_t tasks = SharedArms::kMostKept + 1;
  for (std::size_t i = 0; i < 2 * tasks; ++i) {
    cells.push_back(sample::fake_cell("a"));
    cells.back().config.id = std::to_string(i % tasks);
  }
  const Vocabulary vocabulary = sample::vocabulary();
  SharedArms shared([](const CellConfig& cell, Arm arm) { return arm == Arm::kAfter ? cell.id : ""; }, cells,
                    vocabulary);
  for (std::size_t i = 0; i < tasks; ++i) {
    EXPECT_FALSE(shared.take(std::to_string(i), 1).has_value());
    shared.begin(std::to_string(i));
    EXPECT_TRUE(shared.underway(std::to_string(i)));
    shared.finish(std::to_string(i), ArmResult{}, "first");
  }
  EXPECT_FALSE(shared.take("0", 1).has_value());
  EXPECT_FALSE(shared.underway("0")) << "the first cell that needs it runs it";
  for (std::size_t i = 1; i < tasks; ++i)
    EXPECT_EQ(shared.take(std::to_string(i), 1).value().measured_in, "first") << i;
}

// The limit of the cell that requests the result, not of the cell that measured it.
TEST(SharedArms, ResultThatTookLongerThanTheLimitIsNotTaken) {
  const std::vector<PlannedCell> cells{sample::fake_cell("a"), sample::fake_cell("b"), sample::fake_cell("c")};
  SharedArms shared(after_alone, cells, sample::vocabulary());
  ArmResult slow;
  slow.seconds = 2.0;
  shared.begin("after");
  shared.finish("after", slow, "a");
  EXPECT_FALSE(shared.take("after", 1.0).has_value());
  shared.begin("after");  // so it runs the arm itself, and ends in time
  shared.finish("after", ArmResult{}, "b");
  EXPECT_EQ(shared.take("after", 1.0).value().measured_in, "b");
  EXPECT_FALSE(shared.take("after", 1.0).has_value()) << "no further cell needs it";
}

}  // namespace
}  // namespace fp8lab
