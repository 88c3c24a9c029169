#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/vocabulary.h"
#include "harness/measure/measure.h"
#include "harness/results/verdict.h"
#include "harness/run/shared_arms.h"
#include "harness/scenario/scenario.h"
#include "support/paths.h"

// task_of() promises that arms to which it gives equal names measure the same. Tested on `meta` for every task that
// cells of the bundled scenarios share. Values follow from the sequence of operations, whose hash is compared.
namespace fp8lab {
namespace {

struct Asker {
  CellConfig cell;
  Arm arm;
};

TEST(TaskOf, SharedArmsOfTheBundledScenariosMeasureTheSame) {
  const LoadedScenarios loaded = load_scenarios(find_scenario_files({paths::kScenarios}), bundled_vocabulary());
  std::map<std::string, std::vector<Asker>> tasks;
  std::size_t arms = 0;
  for (const PlannedCell& planned : loaded.cells) {
    CellConfig cell = planned.config;
    cell.device = "meta";
    cell.measure = {"memory", "traffic"};
    for (const Arm arm : arms_of(planned, bundled_vocabulary())) {
      if (arm == Arm::kBefore) continue;  // some before arms are expected to crash
      tasks[task_of(cell, arm)].push_back({cell, arm});
      ++arms;
    }
  }
  std::size_t compared = 0;
  for (const auto& [task, askers] : tasks) {
    if (askers.size() == 1) continue;
    const auto figures = [](const Asker& asker) {
      const ArmResult result = measure_arm(asker.cell, asker.arm);
      std::map<std::string, double> values;
      for (const auto& [name, metric] : result.metrics)
        if (metric.value) values[name] = *metric.value;
      return std::pair(values, result.sequence_hash);
    };
    const auto first = figures(askers.front());
    EXPECT_FALSE(first.first.empty());
    for (std::size_t i = 1; i < askers.size(); ++i)
      EXPECT_EQ(figures(askers[i]), first) << askers.front().cell.id << " and " << askers[i].cell.id;
    ++compared;
  }
  EXPECT_GT(compared, 50u);
  EXPECT_LT(tasks.size(), arms);
}

}  // namespace
}  // namespace fp8lab
