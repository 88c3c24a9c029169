#include "harness/run/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/scenario/sample.h"

namespace fp8lab {
namespace {

constexpr const char* kStep = "time.step_ms";

/// A fix cell whose step may take 5 % longer after than before.
PlannedCell timed_cell(bool gated = true) {
  PlannedCell cell;
  cell.config.id = "timed";
  cell.config.fix = "release_attention_tensors";
  cell.config.measure = {"memory", "time"};
  if (!gated) return cell;
  Expectation gate;
  gate.metric = kStep;
  gate.comparison = Comparison::kAtMost;
  gate.of = Arm::kBefore;
  gate.factor = 1.05;
  cell.expect.push_back(gate);
  return cell;
}

ArmResult took(double ms, double peak_bytes = 1000) {
  ArmResult out;
  out.metrics[kStep] = {ms, {}, "ms", ""};
  out.metrics["memory.peak_bytes"] = {peak_bytes, {}, "B", ""};
  out.seconds = 1;
  return out;
}

const std::vector<Arm> kBoth{Arm::kBefore, Arm::kAfter};

/// Runs rounds until none is needed; `after` gives the step time of the after arm by round, 10 ms being the before
/// arm's.
template <class After>
ArmResults run(const PlannedCell& cell, int asked, const After& after,
               std::vector<std::vector<Arm>>* orders = nullptr) {
  Rounds rounds(cell, kBoth, processes_of(cell, asked));
  ArmResults results;
  for (int round = 0;; ++round) {
    const std::vector<Arm> order = rounds.next(results);
    if (order.empty()) return results;
    if (orders) orders->push_back(order);
    for (const Arm arm : order) rounds.add(arm, took(arm == Arm::kBefore ? 10 : after(round)), results);
  }
}

std::size_t rounds_of(const ArmResults& results) { return results.at(Arm::kAfter).by_process.at(kStep).size(); }

TEST(Rounds, FigureThatIsNanInEveryProcessDiffersInNone) {
  Rounds rounds(timed_cell(), kBoth, {.fewest = 2, .most = 2});
  ArmResults results;
  for (const double second : {std::nan(""), 1.0}) {
    results.clear();
    rounds.add(Arm::kAfter, took(10, std::nan("")), results);
    rounds.add(Arm::kAfter, took(10, second), results);
    EXPECT_EQ(results.at(Arm::kAfter).notes.empty(), std::isnan(second));
  }
}

TEST(Rounds, OneProcessRunsAnArmWhoseTimeIsNotGated) {
  const ArmResults results = run(timed_cell(false), 0, [](int) { return 11.0; });
  EXPECT_TRUE(results.at(Arm::kAfter).by_process.empty());
  EXPECT_EQ(results.at(Arm::kAfter).seconds, 1);
}

TEST(Rounds, CellThatMeasuresNoTimeRunsOnceHoweverManyAreAsked) {
  PlannedCell cell = timed_cell(false);
  cell.config.measure = {"memory"};
  EXPECT_EQ(processes_of(cell, 50).most, 1);
}

TEST(Rounds, GateOnTimeTakesEightProcessesWhereTheyDecideIt) {
  const ArmResults results = run(timed_cell(), 0, [](int) { return 10.1; });
  EXPECT_EQ(rounds_of(results), 8u);
  const Judgement judgement = judge(timed_cell().config, results, timed_cell().expect);
  EXPECT_EQ(judgement.gates[0].pass, true);
  EXPECT_NEAR(judgement.gates[0].ratio->value, 1.01, 1e-9);
  EXPECT_NEAR(judgement.gates[0].limit.value(), 10.5, 1e-9);
}

TEST(Rounds, GateThatStaysUndecidedTakesThreeTimesAsMany) {
  const auto either = [](int round) { return round % 2 == 0 ? 10.0 : 11.0; };  // 5 % lies inside
  const ArmResults results = run(timed_cell(), 0, either);
  EXPECT_EQ(rounds_of(results), 24u);
  const Judgement judgement = judge(timed_cell().config, results, timed_cell().expect);
  EXPECT_EQ(judgement.verdict, Verdict::kInconclusive);
  EXPECT_NE(judgement.reason.find("changes below"), std::string::npos) << judgement.reason;
}

TEST(Rounds, StepThatTakesLongerAfterTheFixIsARegression) {
  const ArmResults results = run(timed_cell(), 0, [](int round) { return 10.6 + 0.01 * round; });
  const Judgement judgement = judge(timed_cell().config, results, timed_cell().expect);
  EXPECT_EQ(judgement.verdict, Verdict::kRegressed);
  EXPECT_NE(judgement.reason.find("1.05 of before"), std::string::npos) << judgement.reason;
}

TEST(Rounds, AskedNumberIsRunWithoutAGateToo) {
  const ArmResults results = run(timed_cell(false), 5, [](int round) { return 10.0 + round; });
  EXPECT_EQ(rounds_of(results), 5u);
  EXPECT_EQ(results.at(Arm::kAfter).metrics.at(kStep).value, 12.0);  // the median
  EXPECT_EQ(results.at(Arm::kAfter).seconds, 5);
}

TEST(Rounds, EveryRoundRunsEveryArmInAnOrderOfItsOwn) {
  std::vector<std::vector<Arm>> orders;
  run(timed_cell(false), 40, [](int) { return 10.0; }, &orders);
  ASSERT_EQ(orders.size(), 40u);
  for (std::vector<Arm> order : orders) {
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, kBoth);
  }
  const auto before_first = std::count_if(orders.begin(), orders.end(), [](const auto& o) { return o[0] == kBoth[0]; });
  EXPECT_GT(before_first, 8);
  EXPECT_LT(before_first, 32);
}

TEST(Rounds, ProcessThatDoesNotEndWellEndsTheCell) {
  const PlannedCell cell = timed_cell();
  Rounds rounds(cell, kBoth, processes_of(cell, 0));
  ArmResults results;
  for (int round = 0; round < 2; ++round)
    for (const Arm arm : rounds.next(results)) {
      ArmResult result = took(10);
      if (round == 1 && arm == Arm::kAfter) result.status = "crashed";
      rounds.add(arm, std::move(result), results);
    }
  EXPECT_TRUE(rounds.next(results).empty());
  EXPECT_EQ(results.at(Arm::kAfter).status, "crashed");
}

TEST(Rounds, ExactFigureThatDiffersBetweenProcessesIsInTheNotes) {
  const PlannedCell cell = timed_cell(false);
  Rounds rounds(cell, {Arm::kAfter}, {.fewest = 2, .most = 2});
  ArmResults results;
  for (const double peak : {1000.0, 1001.0}) {
    ASSERT_FALSE(rounds.next(results).empty());
    rounds.add(Arm::kAfter, took(10, peak), results);
  }
  ASSERT_EQ(results.at(Arm::kAfter).notes.size(), 1u);
  EXPECT_EQ(results.at(Arm::kAfter).notes[0],
            "memory.peak_bytes differs between processes of this arm: 1000 in the first, 1001 in a later one");
}

}  // namespace
}  // namespace fp8lab
