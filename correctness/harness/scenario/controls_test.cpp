#include "harness/scenario/controls.h"

#include <gtest/gtest.h>

#include "harness/measure/measure.h"
#include "harness/results/verdict.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/sample.h"

namespace fp8lab {
namespace {

/// A small sharded scenario whose first cell may crash.
std::vector<PlannedCell> cells() {
  const Vocabulary vocabulary = sample::vocabulary();
  return plan_cells(parse_scenario(R"(version: 1
name: small
title: Two layers over two ranks
fix: release_attention_tensors
device: cpu
ranks: 2
model: {layer: linear, layers: 2, hidden: 32, seq: 16}
training: {steps: 3, optimizer: adam, recipe: delayed, loss: mse}
matrix: {master_weights: [none, f32]}
measure: [memory, traffic, parity]
expect:
  - {arm: before, status: crashed, when: {master_weights: none}}
  - {metric: memory.peak_bytes, arm: before, equals: predicted}
  - {metric: memory.peak_bytes, arm: after, equals: predicted}
claims:
  - {source: here, words: "one", metric: memory.peak_bytes, arm: before, value: 1, unit: B}
)",
                                   "small.yaml", vocabulary),
                    vocabulary);
}

Judgement judged(const PlannedCell& cell) {
  ArmResults results;
  for (const Arm arm : {Arm::kBefore, Arm::kAfter}) results[arm] = measure_arm(cell.config, arm);
  return judge(cell.config, results, cell.expect);
}

TEST(Controls, AreTwoForEachScenario_FromItsFirstCellThatIsNotExpectedToCrash) {
  const std::vector<PlannedCell> controls = control_cells(cells(), true);
  ASSERT_EQ(controls.size(), 2u);
  EXPECT_EQ(controls[0].config.id, "small/control=same");
  EXPECT_EQ(controls[1].config.id, "small/control=planted");
  for (const PlannedCell& control : controls) {
    EXPECT_EQ(control.config.fix, "");
    EXPECT_EQ(control.config.training.master_weights, Master::kF32);
    EXPECT_TRUE(control.claims.empty());
    EXPECT_TRUE(has_before(control.config));
  }
  EXPECT_TRUE(control_cells(controls, true).empty()) << "controls have no controls";
}

TEST(Controls, OfAnAxisHaveABeforeArmOfWhichSomethingMayBeExpected) {
  const Vocabulary vocabulary = sample::vocabulary();
  const std::vector<PlannedCell> cells = plan_cells(parse_scenario(R"(version: 1
name: own
title: Controls of my own
device: cpu
model: {layer: linear, hidden: 32, seq: 16}
matrix: {control: [same, planted]}
measure: [memory]
expect:
  - {metric: memory.peak_bytes, arm: difference, equals: 0, when: {control: same}}
  - {metric: memory.peak_bytes, arm: difference, equals: 1, when: {control: planted}}
)",
                                                                   "own.yaml", vocabulary),
                                                    vocabulary);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(judged(cells[0]).verdict, Verdict::kUnaffected);
  EXPECT_EQ(judged(cells[1]).verdict, Verdict::kConfirmed);
}

TEST(Controls, EqualArmsShowNoDifference) {
  const PlannedCell same = control_cells(cells(), true).at(0);
  const Judgement judgement = judged(same);
  EXPECT_EQ(judgement.verdict, Verdict::kUnaffected) << judgement.reason;
  EXPECT_EQ(judgement.gates.size(), 4u);
}

TEST(Controls, PlantedByteAndCollectiveAreFound) {
  PlannedCell planted = control_cells(cells(), true).at(1);
  EXPECT_EQ(planted.expect.size(), 2u);
  EXPECT_EQ(judged(planted).verdict, Verdict::kConfirmed) << judged(planted).reason;
  // The same expectations on equal arms fail, so a measurement that missed them would be noticed.
  planted.config.control = Control::kSame;
  const Judgement missed = judged(planted);
  for (const Gate& gate : missed.gates) EXPECT_EQ(gate.pass, false) << gate.text;
}

TEST(Controls, PlantedTimeIsFivePercentOfTheStep) {
  PlannedCell planted = control_cells(cells(), true).at(1);
  planted.config.measure = {"time"};
  const ArmResult slow = measure_arm(planted.config, Arm::kBefore);
  const double step = *slow.metrics.at("time.step_ms").value, optimizer = *slow.metrics.at("time.optimizer_ms").value;
  EXPECT_GE(optimizer, 0.9 * step * 0.05 / 1.05);  // medians of different steps, so not exactly
}

TEST(Controls, ScenarioThatMeasuresTimeGatesTheStep) {
  std::vector<PlannedCell> timed = cells();
  for (PlannedCell& cell : timed) cell.config.measure = {"time"};
  const std::vector<PlannedCell> controls = control_cells(timed, true);
  EXPECT_EQ(text_of(controls.at(0).expect.at(0)), "after time.step_ms is at most 1.05 of before's");
  EXPECT_EQ(text_of(controls.at(1).expect.at(0)), "before time.step_ms is at least 1.01 of after's");
  EXPECT_TRUE(control_cells(timed, false).empty()) << "no time is gated, so none needs many processes";
  Expectation gate;
  gate.metric = "time.step_ms";
  timed.at(1).expect.push_back(gate);
  EXPECT_EQ(control_cells(timed, false).size(), 2u);
}

TEST(Controls, AreCountedByTheirIds) {
  ControlCounts counts;
  EXPECT_EQ(counts.text(), "");
  using Outcome = ControlCounts::Outcome;
  counts.add("small/control=same", Outcome::kGood);
  counts.add("other/control=same", Outcome::kWrong);
  counts.add("third/control=same", Outcome::kUndecided);
  counts.add("small/control=planted", Outcome::kGood);
  counts.add("small", Outcome::kWrong);
  EXPECT_EQ(counts.text(),
            "controls: equal pairs: 3, false alarms: 1, undecided: 1; planted changes: 1, missed: 0, undecided: 0");
}

}  // namespace
}  // namespace fp8lab
