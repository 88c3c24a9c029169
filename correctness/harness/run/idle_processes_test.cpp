#include "harness/run/idle_processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/run/fake_cells.h"
#include "harness/run/fake_command.h"
#include "harness/run/runner.h"

// Processes of arms are used again for other arms; an arm that fails ends its process and affects no other.
namespace fp8lab {
namespace {

struct Ran {
  std::vector<std::string> order;
  std::map<std::string, CellRecord> records;

  std::int64_t process_of(const std::string& name, Arm arm) const {
    return records.at(name).arms.at(arm).retained_by_holder.at(0).second;
  }
};

struct Given {
  int jobs = 1;
  bool isolate = false;
  double timeout_s = 2;
  double memory_gib = 0;
};

Ran run(const std::vector<PlannedCell>& cells, const Given& given) {
  Vocabulary vocabulary = sample::vocabulary();
  if (given.memory_gib > 0)
    for (Term& device : vocabulary.devices) device.gpu_memory = [] { return std::vector{std::int64_t{4} << 30}; };
  RunnerOptions options;
  options.jobs = given.jobs;
  options.isolate = given.isolate;
  options.timeout_s = given.timeout_s;
  options.command = sample::fake_command();
  if (given.memory_gib > 0)
    options.predict = [gib = given.memory_gib](const CellConfig&, Arm) {
      return std::map<std::string, double>{{"memory.peak_bytes", gib * (1 << 30)}};
    };
  Ran ran;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) {
    ran.order.push_back(record.config.id);
    ran.records[record.config.id] = std::move(record);
  };
  EXPECT_EQ(run_cells(cells, vocabulary, options, events), 0);
  return ran;
}

std::vector<PlannedCell> cells_named(const std::vector<std::string>& names) {
  std::vector<PlannedCell> cells;
  for (const std::string& name : names) cells.push_back(sample::fake_cell(name));
  return cells;
}

std::set<std::int64_t> processes_of(const Ran& ran, Arm arm) {
  std::set<std::int64_t> processes;
  for (const auto& [name, record] : ran.records) processes.insert(ran.process_of(name, arm));
  return processes;
}

const std::vector<std::string> kFour{"after_pid#1", "after_pid#2", "after_pid#3", "after_pid#4"};

TEST(IdleProcesses, RunFurtherArms) {
  EXPECT_EQ(processes_of(run(cells_named(kFour), {}), Arm::kAfter).size(), 1u);
  EXPECT_LE(processes_of(run(cells_named(kFour), {.jobs = 2}), Arm::kAfter).size(), 2u);
  EXPECT_EQ(processes_of(run(cells_named(kFour), {.isolate = true}), Arm::kAfter).size(), 4u);
}

TEST(IdleProcesses, RunArmsThatRevertAFix) {
  const std::vector<std::string> names{"before_pid#1", "before_pid#2", "before_pid#3"};
  EXPECT_EQ(processes_of(run(cells_named(names), {}), Arm::kBefore).size(), 1u);
  EXPECT_EQ(processes_of(run(cells_named(names), {.isolate = true}), Arm::kBefore).size(), 3u);
}

TEST(IdleProcesses, RunAllArmsOfACellOneAfterTheOther) {
  const Ran single = run(cells_named({"pids#1"}), {.jobs = 1});
  EXPECT_EQ(single.process_of("pids#1", Arm::kBefore), single.process_of("pids#1", Arm::kAfter));
}

TEST(IdleProcesses, AreNotUsedForTimedArms) {
  std::vector<PlannedCell> cells = cells_named(kFour);
  for (const std::size_t timed : {1u, 2u}) cells[timed].config.measure = {"time"};
  const Ran ran = run(cells, {});
  EXPECT_EQ(ran.order, (std::vector{kFour[0], kFour[3], kFour[1], kFour[2]}));
  EXPECT_EQ(ran.process_of(kFour[0], Arm::kAfter), ran.process_of(kFour[3], Arm::kAfter));
  EXPECT_NE(ran.process_of(kFour[1], Arm::kAfter), ran.process_of(kFour[0], Arm::kAfter));
  EXPECT_NE(ran.process_of(kFour[1], Arm::kAfter), ran.process_of(kFour[2], Arm::kAfter));
}

TEST(IdleProcesses, FailedArmEndsOnlyItsOwnProcess) {
  for (const char* wrong :
       {"after_segv", "after_exit", "after_exit3", "after_garbage", "after_oom", "after_error", "after_hang"}) {
    const Ran ran = run(cells_named({"after_pid#1", wrong, "after_pid#2"}), {});
    EXPECT_FALSE(is_good(ran.records.at(wrong).verdict)) << wrong;
    EXPECT_EQ(ran.records.at("after_pid#2").verdict, Verdict::kConfirmed) << wrong;
    EXPECT_NE(ran.process_of("after_pid#1", Arm::kAfter), ran.process_of("after_pid#2", Arm::kAfter)) << wrong;
  }
  EXPECT_EQ(run(cells_named({"after_pid#1", "after_exit"}), {}).records.at("after_exit").arms.at(Arm::kAfter).reason,
            "exited without a result");
}

TEST(IdleProcesses, OutputBelongsToItsArm) {
  const Ran ran = run(cells_named({"after_words", "after_exit3"}), {});
  EXPECT_EQ(ran.records.at("after_words").arms.at(Arm::kAfter).output_tail, "");
  EXPECT_EQ(ran.records.at("after_exit3").arms.at(Arm::kAfter).output_tail, "first line\nthe last words\n\n");
}

/// Runs an arm in `process`, which stays alive; returns the process's id.
pid_t run_and_stay(ArmProcess& process) {
  process.start(sample::fake_cell("after_pid").config, Arm::kAfter, ArmProcess::Then::kStay);
  EXPECT_FALSE(process.ready());
  while (!process.ended()) {
    pollfd fd{process.answer_fd(), POLLIN, 0};
    ::poll(&fd, 1, 5);
  }
  return static_cast<pid_t>(process.result().retained_by_holder.at(0).second);
}

TEST(IdleProcesses, TimeAndResultsBelongToTheArm) {
  const Ran ran = run(cells_named({"after_big", "after_pid"}), {});
  EXPECT_EQ(ran.records.at("after_big").arms.at(Arm::kAfter).timeline_json.size(), std::size_t{8} << 20);
  EXPECT_EQ(ran.records.at("after_pid").arms.at(Arm::kAfter).timeline_json, "{\"events\": []}");
  const auto begin = Clock::now();
  ArmProcess process(sample::fake_command());
  EXPECT_TRUE(process.ready());
  ::poll(nullptr, 0, 300);
  run_and_stay(process);
  EXPECT_EQ(process.result().status, "ok");
  EXPECT_LT(process.result().seconds, std::chrono::duration<double>(Clock::now() - begin).count() - 0.29);
  EXPECT_TRUE(process.ready());
  EXPECT_EQ(process.answer_fd(), -1);
  process.terminate();
  EXPECT_FALSE(process.ready()) << "it may not have died yet";
}

TEST(IdleProcesses, DeadProcessIsNotUsed) {
  auto process = std::make_unique<ArmProcess>(sample::fake_command());
  ::kill(run_and_stay(*process), SIGKILL);
  while (process->ready()) ::poll(nullptr, 0, 1);
  IdleProcesses idle;
  idle.put("meta", 0, std::move(process));
  idle.put("cpu", 0, std::make_unique<ArmProcess>(sample::fake_command()));
  EXPECT_EQ(idle.count("meta"), 1u);
  EXPECT_EQ(idle.take("meta", 0), nullptr);
  EXPECT_FALSE(idle.drop("meta"));
  EXPECT_NE(idle.take("cpu", 0), nullptr);
  EXPECT_EQ(idle.count("cpu"), 0u);
}

// Each of two arms takes 1.3 GiB of the 4 GiB, and the driver's 0.6 GiB. While an arm hangs there is no room for
// another arm and an idle process, so the idle one must end; otherwise the other arms would wait for the hanging one.
TEST(IdleProcesses, EndToMakeRoomForArms) {
  const std::vector<std::string> order =
      run(cells_named({"after_hang", "after_pid#1", "after_pid#2"}), {.jobs = 2, .timeout_s = 6, .memory_gib = 1.3})
          .order;
  EXPECT_EQ(order, (std::vector<std::string>{"after_pid#1", "after_pid#2", "after_hang"}));
}

}  // namespace
}  // namespace fp8lab
