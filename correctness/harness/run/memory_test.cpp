#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "harness/measure/measure.h"
#include "harness/run/fake_process.h"
#include "support/paths.h"

// Host memory that runs and arms take, and their messages if it is limited. Sanitizers take memory of their own, so
// this test is not built under them.
namespace fp8lab {
namespace {

using sample::contains;
using sample::Scenarios;

/// The peak of resident bytes of a child in which `work` runs, including this process's memory at that moment.
std::int64_t peak_bytes_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return std::int64_t{used.ru_maxrss} << 10;
}

CellConfig steps(std::int64_t count, const std::string& device) {
  CellConfig cell;
  cell.device = device;
  cell.model = {.layer = "transformer_layer", .hidden = 64, .heads = 2, .ffn = 64, .seq = 8};
  cell.training.steps = count;
  cell.training.optimizer = "adam";
  cell.training.recipe = "delayed";
  cell.measure = {"memory", "traffic", "host", "time"};
  if (device == "meta") cell.ranks = 2;
  return cell;
}

TEST(ArmMemory, DoesNotGrowWithTheNumberOfSteps) {
  for (const char* device : {"meta", "cpu"}) {
    const std::int64_t few = peak_bytes_of([&] { measure_arm(steps(200, device), Arm::kAfter); }),
                       many = peak_bytes_of([&] { measure_arm(steps(4000, device), Arm::kAfter); });
    EXPECT_LT(many - few, 2 << 20) << device << ": " << few << " bytes in 200 steps, " << many << " in 4000";
  }
}

TEST(RunnerMemory, TenThousandCells_TakeLessThan120MB) {
  if (::access("/dev/shm", W_OK) == 0)
    ::setenv("TMPDIR", "/dev/shm", 1);  // syncing each line takes minutes on a slow disk
  Scenarios scenarios({});
  std::string seeds = "1";
  for (int i = 2; i <= 10000; ++i) seeds += ", " + std::to_string(i);
  std::string text = sample::kFixScenario;
  text.replace(text.find("fix: "), text.find('\n', text.find("fix: ")) - text.find("fix: "), "device: meta");
  sample::write(scenarios.file("many.yaml"), text + "matrix: {seed: [" + seeds + R"(]}
expect:
  - {metric: memory.retained_bytes, arm: after, equals: predicted}
)");
  const std::int64_t peak = peak_bytes_of([&] {
    ::execl("/bin/sh", "sh", "-c",
            (std::string("exec ") + paths::kFakeProgram + " run " + scenarios.path() + " -j 2 -o " + scenarios.out() +
             " > /dev/null")
                .c_str(),
            nullptr);
  });
  EXPECT_LT(peak, 120 << 20);
  EXPECT_TRUE(contains(scenarios.read("summary.md"), "# fp8lab: 10000 pass\n"));
}

TEST(Limits, Memory_BeyondTheLimit_IsOutOfMemoryThatNamesTheLimit) {
  for (const char* name : {"before_greedy", "before_greedy_thread"}) {
    const ArmResult arm = sample::before_arm(Scenarios({name}), "ulimit -v 1000000");
    EXPECT_EQ(arm.status, "out_of_memory") << name << arm.reason;
    EXPECT_TRUE(contains(arm.reason, "; the limit on a process's memory is 1000000 KiB (`ulimit -v`)"))
        << name << arm.reason;
  }
}

}  // namespace
}  // namespace fp8lab
