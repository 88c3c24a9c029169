#include "harness/results/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness/scenario/sample.h"

namespace fp8lab {
namespace {

const std::string kMetric = "memory.retained_bytes";

ArmResult arm(std::optional<double> value, std::optional<double> predicted = {}) {
  ArmResult out;
  out.metrics[kMetric] = {value, predicted, "B", value ? "" : "the ledger was off"};
  return out;
}

ArmResult ended(const std::string& status, const std::string& signal = "") {
  ArmResult out;
  out.status = status;
  out.signal = signal;
  out.reason = status + " for a reason";
  return out;
}

Expectation expect(Side side, Comparison comparison, double limit) {
  Expectation out;
  out.side = side;
  out.metric = kMetric;
  out.comparison = comparison;
  out.low = out.high = limit;
  return out;
}

Expectation equals(Side side, double limit) { return expect(side, Comparison::kEquals, limit); }

Expectation equals_predicted(Side side) {
  Expectation out = equals(side, 0);
  out.predicted = true;
  return out;
}

Expectation compared(Side side, Comparison comparison, Arm of) {
  Expectation out = expect(side, comparison, 0);
  out.of = of;
  return out;
}

Expectation at_most_bf16(Side side) { return compared(side, Comparison::kAtMost, Arm::kBf16); }

Expectation ends(Side side, const std::string& status, const std::string& signal = "") {
  Expectation out;
  out.side = side;
  out.comparison = Comparison::kEnds;
  out.status = status;
  out.signal = signal;
  return out;
}

CellConfig fix_cell() {
  CellConfig out;
  out.fix = "release_attention_tensors";
  return out;
}

const std::vector<Expectation> kLeak{equals_predicted(Side::kBefore), equals(Side::kAfter, 0)};

struct Case {
  std::string name;
  ArmResults arms;
  std::vector<Expectation> expect;
  Verdict verdict;
  std::string reason_part;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> fix_cases() {
  const double nan = std::nan("");
  return {
      {"as_it_should_be", {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(0)}}, kLeak, Verdict::kConfirmed, ""},
      {"before_misses_by_one",
       {{Arm::kBefore, arm(99, 100)}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kNotReproduced,
       "before memory.retained_bytes equals predicted: measured 99 B, predicted 100 B"},
      {"after_still_leaks",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(100)}},
       kLeak,
       Verdict::kNotFixed,
       "after memory.retained_bytes equals 0: measured 100 B"},
      {"after_leaks_and_before_does_not_match",
       {{Arm::kBefore, arm(99, 100)}, {Arm::kAfter, arm(1)}},
       kLeak,
       Verdict::kNotFixed,
       ""},
      {"after_is_worse",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(200)}},
       kLeak,
       Verdict::kRegressed,
       "worse after"},
      {"before_is_nan", {{Arm::kBefore, arm(nan, 100)}, {Arm::kAfter, arm(0)}}, kLeak, Verdict::kNotReproduced, "nan"},
      {"after_is_nan", {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(nan)}}, kLeak, Verdict::kNotFixed, "nan"},
      {"prediction_is_nan", {{Arm::kBefore, arm(100, nan)}, {Arm::kAfter, arm(0)}}, kLeak, Verdict::kNotReproduced, ""},
      {"before_is_absent",
       {{Arm::kBefore, arm({}, 100)}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kInconclusive,
       "the ledger was off"},
      {"prediction_is_absent",
       {{Arm::kBefore, arm(100)}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kInconclusive,
       "no prediction"},
      {"metric_is_absent",
       {{Arm::kBefore, ArmResult{}}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kInconclusive,
       "no value"},
      {"absent_and_failed", {{Arm::kBefore, arm({}, 100)}, {Arm::kAfter, arm(5)}}, kLeak, Verdict::kNotFixed, ""},
      {"no_expectations",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(0)}},
       {},
       Verdict::kInconclusive,
       "before arm"},
      {"nothing_about_before",
       {{Arm::kBefore, arm(100)}, {Arm::kAfter, arm(0)}},
       {equals(Side::kAfter, 0)},
       Verdict::kInconclusive,
       "covers the before arm"},
      {"nothing_about_after",
       {{Arm::kBefore, arm(100)}, {Arm::kAfter, arm(0)}},
       {equals(Side::kBefore, 100)},
       Verdict::kInconclusive,
       "covers the after arm"},
      {"difference_speaks_of_both",
       {{Arm::kBefore, arm(130)}, {Arm::kAfter, arm(30)}},
       {equals(Side::kDifference, 100)},
       Verdict::kConfirmed,
       ""},
      {"before_beside_after_speaks_of_both",
       {{Arm::kBefore, arm(130)}, {Arm::kAfter, arm(30)}},
       {compared(Side::kBefore, Comparison::kAtLeast, Arm::kAfter)},
       Verdict::kConfirmed,
       ""},
      {"difference_too_small",
       {{Arm::kBefore, arm(130)}, {Arm::kAfter, arm(31)}},
       {equals(Side::kDifference, 100)},
       Verdict::kNotReproduced,
       "99"},
      {"nothing_differs", {{Arm::kBefore, arm(0, 0)}, {Arm::kAfter, arm(0)}}, kLeak, Verdict::kUnaffected, ""},
      {"bf16_alone_differs",
       {{Arm::kBefore, arm(7)}, {Arm::kAfter, arm(7)}, {Arm::kBf16, arm(8)}},
       {equals(Side::kBefore, 7), at_most_bf16(Side::kAfter)},
       Verdict::kUnaffected,
       ""},
      {"difference_predicted",
       {{Arm::kBefore, arm(130, 120)}, {Arm::kAfter, arm(30, 20)}},
       {equals_predicted(Side::kDifference)},
       Verdict::kConfirmed,
       ""},
      {"control_fails",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(0)}, {Arm::kBf16, arm(7)}},
       {equals_predicted(Side::kBefore), equals(Side::kAfter, 0), equals(Side::kBf16, 0)},
       Verdict::kNotReproduced,
       "bf16"},
      {"after_costs_as_much_as_bf16",
       {{Arm::kBefore, arm(9)}, {Arm::kAfter, arm(7)}, {Arm::kBf16, arm(7)}},
       {equals(Side::kBefore, 9), at_most_bf16(Side::kAfter)},
       Verdict::kConfirmed,
       ""},
      {"after_costs_more_than_bf16",
       {{Arm::kBefore, arm(9)}, {Arm::kAfter, arm(8)}, {Arm::kBf16, arm(7)}},
       {equals(Side::kBefore, 9), at_most_bf16(Side::kAfter)},
       Verdict::kNotFixed,
       "after memory.retained_bytes is at most bf16's: measured 8 B, bf16 7 B"},
      {"bf16_has_no_figure",
       {{Arm::kBefore, arm(9)}, {Arm::kAfter, arm(7)}, {Arm::kBf16, arm({})}},
       {equals(Side::kBefore, 9), at_most_bf16(Side::kAfter)},
       Verdict::kInconclusive,
       "the ledger was off"},
      {"before_crashes",
       {{Arm::kBefore, ended("crashed", "SIGSEGV")}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kCrashed,
       "before: crashed for a reason"},
      {"after_crashes",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, ended("crashed", "SIGABRT")}},
       kLeak,
       Verdict::kCrashed,
       "after"},
      {"out_of_memory",
       {{Arm::kBefore, ended("out_of_memory")}, {Arm::kAfter, arm(0)}},
       kLeak,
       Verdict::kCrashed,
       "out_of_memory for a reason; if it should end so, expect it by `{arm: before, status: out_of_memory}`"},
      {"bf16_out_of_memory",
       {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, arm(0)}, {Arm::kBf16, ended("out_of_memory")}},
       kLeak,
       Verdict::kCrashed,
       "expect it by `{arm: bf16, status: out_of_memory}`"},
      {"an_error", {{Arm::kBefore, arm(100, 100)}, {Arm::kAfter, ended("error")}}, kLeak, Verdict::kCrashed, "error"},
      {"before_hangs", {{Arm::kBefore, ended("timeout")}, {Arm::kAfter, arm(0)}}, kLeak, Verdict::kTimeout, "timeout"},
      {"a_crash_and_a_timeout",
       {{Arm::kBefore, ended("crashed")}, {Arm::kAfter, ended("timeout")}},
       kLeak,
       Verdict::kTimeout,
       ""},
      {"a_crash_that_was_expected",
       {{Arm::kBefore, ended("crashed", "SIGSEGV")}, {Arm::kAfter, arm(0)}},
       {ends(Side::kBefore, "crashed", "SIGSEGV"), equals(Side::kAfter, 0)},
       Verdict::kConfirmed,
       ""},
      {"any_signal_was_expected",
       {{Arm::kBefore, ended("crashed", "SIGABRT")}, {Arm::kAfter, arm(0)}},
       {ends(Side::kBefore, "crashed"), equals(Side::kAfter, 0)},
       Verdict::kConfirmed,
       ""},
      {"another_signal_was_expected",
       {{Arm::kBefore, ended("crashed", "SIGABRT")}, {Arm::kAfter, arm(0)}},
       {ends(Side::kBefore, "crashed", "SIGSEGV"), equals(Side::kAfter, 0)},
       Verdict::kCrashed,
       ""},
      {"the_expected_crash_stays_away",
       {{Arm::kBefore, arm(0)}, {Arm::kAfter, arm(0)}},
       {ends(Side::kBefore, "crashed", "SIGSEGV"), equals(Side::kAfter, 0)},
       Verdict::kNotReproduced,
       "it ended ok"},
      {"the_expected_crash_is_in_the_other_arm",
       {{Arm::kBefore, arm(100)}, {Arm::kAfter, ended("crashed", "SIGSEGV")}},
       {ends(Side::kBefore, "crashed", "SIGSEGV"), equals(Side::kAfter, 0)},
       Verdict::kCrashed,
       "after"},
      {"a_hang_that_was_expected",
       {{Arm::kBefore, ended("timeout")}, {Arm::kAfter, arm(0)}},
       {ends(Side::kBefore, "timeout"), equals(Side::kAfter, 0)},
       Verdict::kConfirmed,
       ""},
  };
}

class FixCell : public ::testing::TestWithParam<Case> {};

TEST_P(FixCell, HasTheExpectedVerdict) {
  const Case& c = GetParam();
  const Judgement judgement = judge(fix_cell(), c.arms, c.expect);
  EXPECT_EQ(name(judgement.verdict), name(c.verdict)) << judgement.reason;
  EXPECT_NE(judgement.reason.find(c.reason_part), std::string::npos) << judgement.reason;
  EXPECT_EQ(judgement.reason.empty(), is_good(c.verdict)) << judgement.reason;
  EXPECT_EQ(judgement.gates.size(), c.expect.size());
}

INSTANTIATE_TEST_SUITE_P(All, FixCell, ::testing::ValuesIn(fix_cases()), [](const auto& i) { return i.param.name; });

TEST(Verdict, GivesTheReasonThatCameWithTheFigure) {
  ArmResult after = arm(100);
  after.metrics.at("memory.retained_bytes").reason = "context of layers[0].fc1: x";
  const Judgement judgement = judge(CellConfig{}, {{Arm::kAfter, after}}, {equals(Side::kAfter, 0)});
  EXPECT_EQ(judgement.reason, "after memory.retained_bytes equals 0: measured 100 B; context of layers[0].fc1: x");
}

TEST(Verdict, NamesTheOtherGatesThatFailAndWhatBf16MeasuresToo) {
  ArmResults arms{{Arm::kAfter, arm(10)}, {Arm::kBf16, arm(10)}};
  const std::string reason =
      judge({}, arms, {equals(Side::kAfter, 1), equals(Side::kAfter, 10), equals(Side::kBf16, 2)}).reason;
  EXPECT_NE(reason.find("measured 10 B; BF16 measures the same; 1 more gate fails: bf16 memory.retained_bytes"),
            std::string::npos)
      << reason;
  EXPECT_EQ(judge({}, arms, {equals(Side::kAfter, 1)}).reason.find("more gate"), std::string::npos);
}

TEST(PlainCell, PassesFailsOrIsInconclusive) {
  const CellConfig plain;
  EXPECT_EQ(judge(plain, {{Arm::kAfter, arm(3)}}, {equals(Side::kAfter, 3)}).verdict, Verdict::kPass);
  EXPECT_EQ(judge(plain, {{Arm::kAfter, arm(3)}}, {}).verdict, Verdict::kPass);
  EXPECT_EQ(judge(plain, {{Arm::kAfter, arm(3)}}, {equals(Side::kAfter, 4)}).verdict, Verdict::kFail);
  EXPECT_EQ(judge(plain, {{Arm::kAfter, arm({})}}, {equals(Side::kAfter, 4)}).verdict, Verdict::kInconclusive);
  EXPECT_EQ(judge(plain, {{Arm::kAfter, ended("crashed")}}, {}).verdict, Verdict::kCrashed);
}

ArmResult equal_bits(std::optional<double> value) {
  ArmResult out;
  out.metrics["parity.bitwise_equal"].value = value;
  return out;
}

TEST(FixCellOfEqualBits, IsUnaffected) {
  Expectation equal = expect(Side::kBefore, Comparison::kAtLeast, 0), after = equals(Side::kAfter, 0);
  equal.metric = "parity.bitwise_equal";
  const auto verdict = [&](double value) {
    ArmResults arms{{Arm::kBefore, equal_bits(value)}, {Arm::kAfter, equal_bits({})}};
    for (auto& [name, result] : arms) result.metrics[kMetric].value = 0;
    return judge(fix_cell(), arms, {equal, after}).verdict;
  };
  EXPECT_EQ(verdict(1), Verdict::kUnaffected);
  EXPECT_EQ(verdict(0), Verdict::kConfirmed);
}

TEST(FixCellOfTimes, IsConfirmedWhereTheRatioIsNotOne) {
  const auto verdict = [](double factor) {
    ArmResult before, after;
    for (ArmResult* arm : {&before, &after}) arm->metrics["time.step_ms"].value = arm == &after ? factor : 1;
    for (int process = 0; process < 8; ++process) {
      before.by_process["time.step_ms"].push_back(1 + 0.01 * process);
      after.by_process["time.step_ms"].push_back(factor * (1.005 + 0.01 * (7 - process)));
    }
    Expectation gate = expect(Side::kAfter, Comparison::kAtMost, 0);
    gate.metric = "time.step_ms";
    gate.of = Arm::kBefore;
    gate.factor = 1.5;
    return judge(fix_cell(), {{Arm::kBefore, before}, {Arm::kAfter, after}}, {gate}).verdict;
  };
  EXPECT_EQ(verdict(1), Verdict::kUnaffected);
  EXPECT_EQ(verdict(0.5), Verdict::kConfirmed);
}

TEST(FixCellOfValues, NoiseThatOnlyOneArmHas_IsADifference) {
  ArmResult before, after;
  before.metrics["parity.grad_sqnr_db"].value = 10;
  after.metrics["parity.grad_sqnr_db"].reason = "equal to BF16 bit for bit: no noise";
  for (ArmResult* arm : {&before, &after}) arm->metrics["parity.weights_moved"].value = 1;
  std::vector<Expectation> gates{expect(Side::kBefore, Comparison::kAtLeast, 5),
                                 expect(Side::kAfter, Comparison::kAtLeast, 1)};
  gates[0].metric = "parity.grad_sqnr_db";
  gates[1].metric = "parity.weights_moved";
  const auto verdict = [&] { return judge(fix_cell(), {{Arm::kBefore, before}, {Arm::kAfter, after}}, gates).verdict; };
  EXPECT_EQ(verdict(), Verdict::kConfirmed);
  after.metrics["parity.grad_sqnr_db"].reason = "not measured";
  EXPECT_EQ(verdict(), Verdict::kUnaffected);
}

TEST(Regression, NeedsAnExactMetricThatTheScenarioNamesAndThatGotWorse) {
  ArmResult before, after;
  before.metrics["time.step_ms"].value = 1;
  after.metrics["time.step_ms"].value = 2;  // times never count as regressions
  before.metrics["memory.peak_bytes"].value = 1;
  after.metrics["memory.peak_bytes"].value = 2;  // worse, but no expectation names it
  before.metrics["parity.grad_sqnr_db"].value = 10;
  after.metrics["parity.grad_sqnr_db"].value = 30;  // more is better
  const ArmResults arms{{Arm::kBefore, before}, {Arm::kAfter, after}};
  std::vector<Expectation> expectations{expect(Side::kAfter, Comparison::kAtLeast, 0),
                                        expect(Side::kBefore, Comparison::kAtLeast, 0)};
  expectations[0].metric = "time.step_ms";
  expectations[1].metric = "parity.grad_sqnr_db";
  EXPECT_EQ(judge(fix_cell(), arms, expectations).verdict, Verdict::kConfirmed);
  expectations[0].metric = "memory.peak_bytes";
  EXPECT_EQ(judge(fix_cell(), arms, expectations).verdict, Verdict::kRegressed);
}

TEST(Regression, WorseFigureThatAnExpectationStatesExactly_IsTheFixesPrice) {
  const ArmResults arms{{Arm::kBefore, arm(42336, 42336)}, {Arm::kAfter, arm(42360, 42360)}};
  const auto verdict = [&](const Expectation& of_after) {
    return judge(fix_cell(), arms, {equals_predicted(Side::kBefore), of_after}).verdict;
  };
  EXPECT_EQ(verdict(equals_predicted(Side::kAfter)), Verdict::kConfirmed);
  EXPECT_EQ(verdict(equals(Side::kAfter, 42360)), Verdict::kConfirmed);
  EXPECT_EQ(verdict(equals(Side::kDifference, -24)), Verdict::kConfirmed);
  EXPECT_EQ(verdict(expect(Side::kAfter, Comparison::kAtMost, 50000)), Verdict::kRegressed);
  EXPECT_EQ(verdict(equals(Side::kAfter, 42336)), Verdict::kRegressed) << "the gate fails";
  Expectation loose = equals(Side::kAfter, 42360);
  loose.rel = 0.5;
  EXPECT_EQ(verdict(loose), Verdict::kRegressed) << "a figure within half of it is not stated";
}

// A loss gap may double, or grow by 1e-4, without being worse: runs over other data differ by as much.
TEST(Regression, ExceedsBothSlacksOfItsMetric) {
  const auto verdict = [](double before_gap, double after_gap) {
    ArmResult before, after;
    before.metrics["parity.loss_gap"].value = before_gap;
    after.metrics["parity.loss_gap"].value = after_gap;
    std::vector<Expectation> expectations{expect(Side::kAfter, Comparison::kAtLeast, 0),
                                          expect(Side::kBefore, Comparison::kAtLeast, 0)};
    for (Expectation& expectation : expectations) expectation.metric = "parity.loss_gap";
    return judge(fix_cell(), {{Arm::kBefore, before}, {Arm::kAfter, after}}, expectations).verdict;
  };
  EXPECT_EQ(verdict(0.01, 0.0199), Verdict::kConfirmed);
  EXPECT_EQ(verdict(0.01, 0.0201), Verdict::kRegressed);
  EXPECT_EQ(verdict(0, 0.99e-4), Verdict::kConfirmed);
  EXPECT_EQ(verdict(0, 1.01e-4), Verdict::kRegressed);
}

struct Comparing {
  Comparison comparison;
  double low, high, abs, rel, observed;
  bool holds;
};

TEST(Gate, ComparesWithItsTolerance) {
  const double nan = std::nan(""), inf = INFINITY;
  const Comparing cases[] = {
      {Comparison::kEquals, 10, 0, 0, 0, 10, true},        {Comparison::kEquals, 10, 0, 0, 0, 10.5, false},
      {Comparison::kEquals, 10, 0, 0.5, 0, 10.5, true},    {Comparison::kEquals, 10, 0, 0, 0.05, 10.5, true},
      {Comparison::kEquals, 10, 0, 0, 0.05, 10.51, false}, {Comparison::kEquals, -10, 0, 0, 0.05, -10.5, true},
      {Comparison::kEquals, 10, 0, 1, 1, nan, false},      {Comparison::kEquals, 10, 0, 0, 0, inf, false},
      {Comparison::kAtLeast, 10, 0, 0, 0, 10, true},       {Comparison::kAtLeast, 10, 0, 0, 0, 9, false},
      {Comparison::kAtLeast, 10, 0, 1, 0, 9, true},        {Comparison::kAtLeast, 10, 0, 0, 0, nan, false},
      {Comparison::kAtMost, 10, 0, 0, 0, 10, true},        {Comparison::kAtMost, 10, 0, 0, 0, 11, false},
      {Comparison::kAtMost, 10, 0, 0, 0.1, 11, true},      {Comparison::kAtMost, 10, 0, 0, 0, nan, false},
      {Comparison::kWithin, 1, 2, 0, 0, 1, true},          {Comparison::kWithin, 1, 2, 0, 0, 2, true},
      {Comparison::kWithin, 1, 2, 0, 0, 2.1, false},       {Comparison::kWithin, 1, 2, 0, 0, nan, false},
      {Comparison::kAtLeast, 10, 0, 0, 0, inf, true},      {Comparison::kAtMost, 10, 0, 0, 0, inf, false},
      {Comparison::kEquals, inf, 0, 0, 0.1, 10, false},    {Comparison::kEquals, inf, 0, 0, 0, inf, false},
      {Comparison::kAtMost, inf, 0, 0, 0, 10, false},      {Comparison::kAtLeast, -inf, 0, 0, 0, 10, false},
      {Comparison::kAtLeast, 10, 0, 0, 0, -inf, false},
  };
  for (const Comparing& c : cases) {
    Expectation e = expect(Side::kAfter, c.comparison, c.low);
    e.high = c.high;
    e.abs = c.abs;
    e.rel = c.rel;
    const Judgement judgement = judge(CellConfig{}, {{Arm::kAfter, arm(c.observed)}}, {e});
    EXPECT_EQ(judgement.gates.at(0).pass, c.holds) << text_of(e) << ", observed " << c.observed;
  }
}

TEST(Gate, MultipleOfAnotherArmsFigureIsTheLimit) {
  Expectation half = expect(Side::kAfter, Comparison::kAtMost, 0);
  half.of = Arm::kBefore;
  half.factor = 0.5;
  for (const double after : {50.0, 51.0, std::nan("")}) {
    const Judgement judgement = judge(fix_cell(), {{Arm::kBefore, arm(100)}, {Arm::kAfter, arm(after)}}, {half});
    EXPECT_EQ(judgement.gates.at(0).pass, after == 50) << after;
    EXPECT_EQ(judgement.gates.at(0).limit, 50);
  }
}

TEST(Arms, AreTheArmsThatTheCellNeeds) {
  const Vocabulary vocabulary = sample::vocabulary();
  PlannedCell cell;
  cell.config.measure = {"time"};
  EXPECT_EQ(arms_of(cell, vocabulary), (std::vector{Arm::kAfter}));
  cell.config.fix = "release_attention_tensors";
  EXPECT_EQ(arms_of(cell, vocabulary), (std::vector{Arm::kBefore, Arm::kAfter}));
  cell.config.measure = {"memory"};
  cell.config.training.recipe = "delayed";
  EXPECT_EQ(arms_of(cell, vocabulary), (std::vector{Arm::kBefore, Arm::kAfter, Arm::kBf16}));
  cell.config.training.recipe = "bf16";  // its BF16 arm would equal the after arm
  EXPECT_EQ(arms_of(cell, vocabulary), (std::vector{Arm::kBefore, Arm::kAfter}));
  for (const Expectation& names_bf16 : {equals(Side::kBf16, 0), at_most_bf16(Side::kAfter)}) {
    cell.expect = {names_bf16};
    EXPECT_EQ(arms_of(cell, vocabulary), (std::vector{Arm::kBefore, Arm::kAfter, Arm::kBf16}));
  }
}

}  // namespace
}  // namespace fp8lab
