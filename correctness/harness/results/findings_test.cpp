#include <gtest/gtest.h>

#include <string>

#include "harness/results/compare/compare.h"
#include "harness/results/compared_runs.h"

namespace fp8lab {
namespace {

using sample::cell;
using sample::kPeak;
using sample::peak;
using sample::run_of;

std::string first_line(const RunComparison& comparison) {
  const std::string text = comparison_text(comparison);
  return text.substr(0, text.find('\n'));
}

MetricValue bytes(double value) { return {value, value, "B", ""}; }

/// Two layers whose backward keeps 100 bytes each.
void leak(CellRecord& c) {
  ArmResult& after = c.arms[Arm::kAfter];
  after.metrics["memory.retained_bytes"] = bytes(200);
  after.metrics["memory.end_of_backward_bytes"] = bytes(1200);
  after.metrics["memory.by_holder.context"] = bytes(200);
  after.metrics[kPeak] = bytes(1200);
  after.retained_by_holder = {{"context of layers[0].attention: q, k", 100},
                              {"context of layers[1].attention: q, k", 100}};
}

CellRecord clean(const std::string& id) {
  CellRecord out = cell(id);
  ArmResult& after = out.arms[Arm::kAfter];
  after.metrics["memory.retained_bytes"] = bytes(0);
  after.metrics["memory.end_of_backward_bytes"] = bytes(1000);
  after.metrics["traffic.all_gather_bytes"] = bytes(4000);
  after.metrics["parity.weights_moved"] = {1, {}, "1", ""};
  after.metrics["parity.loss_gap"] = {0.001, {}, "1", ""};
  after.metrics["time.step_ms"] = {10, {}, "ms", ""};
  after.samples["time.step_ms"] = {9.5, 9.8, 10, 10.2, 10.5};
  return out;
}

template <class Mutate>
RunComparison planted(Mutate mutate) {
  CellRecord now = clean("a");
  mutate(now);
  CellRecord other = clean("b");  // worse by a little, for another reason
  other.arms[Arm::kAfter].metrics["memory.end_of_backward_bytes"] = bytes(1001);
  return compare_runs(run_of({clean("b"), clean("a")}), run_of({other, now}));
}

TEST(Findings, PlantedLeakIsTheFirstLineWithItsHolder) {
  const RunComparison out = planted(leak);
  EXPECT_EQ(
      first_line(out),
      "a: after memory.retained_bytes +200 B: 0 B -> 200 B, after backward, held by context of layers[*].attention: "
      "q, k (+200 B); with it memory.end_of_backward_bytes, memory.peak_bytes")
      << "among equal changes the cause comes first";
  ASSERT_EQ(out.findings.size(), 2u) << "one line a cell";
  EXPECT_EQ(out.findings[0].holder_bytes, 200);
  EXPECT_EQ(comparison_text(out).find("by_holder"), std::string::npos) << "the finding names the holder";
}

TEST(Findings, FiguresThatRoundAlike_HaveMoreDecimals) {
  CellRecord was = clean("a"), is = clean("a");
  was.arms[Arm::kAfter].metrics[kPeak] = bytes(13.31 * (1 << 30));
  is.arms[Arm::kAfter].metrics[kPeak] = bytes(13.34 * (1 << 30));
  EXPECT_NE(first_line(compare_runs(run_of({was}), run_of({is}))).find(": 13.31 GiB -> 13.34 GiB"), std::string::npos);
}

TEST(Findings, PlantedGatherInHighPrecisionIsTheFirstLine) {
  const RunComparison out = planted([](CellRecord& c) {
    c.arms[Arm::kAfter].metrics["traffic.all_gather_bytes"] = bytes(8000);
    c.arms[Arm::kAfter].metrics[kPeak] = bytes(1100);
  });
  EXPECT_TRUE(first_line(out).starts_with("a: after traffic.all_gather_bytes +3.91 KiB (+100 %)")) << first_line(out);
  EXPECT_NE(first_line(out).find("with it memory.peak_bytes"), std::string::npos) << first_line(out);
}

TEST(Findings, PlantedFrozenWeightIsTheFirstLine) {
  const RunComparison out = planted([](CellRecord& c) {
    leak(c);
    c.verdict = Verdict::kNotFixed;
    *c.arms[Arm::kAfter].metrics["parity.weights_moved"].value = 2.0 / 3;
    *c.arms[Arm::kAfter].metrics["parity.loss_gap"].value = 0.06;
  });
  EXPECT_TRUE(first_line(out).starts_with("a: after parity.loss_gap +0.059 (60 times as much): 0.001 -> 0.06"))
      << first_line(out);
  EXPECT_NE(first_line(out).find("; with it parity.weights_moved -0.333333 (-33.3 %): 1 -> 0.666667"),
            std::string::npos)
      << first_line(out);
  EXPECT_NE(first_line(out).find("confirmed -> not_fixed"), std::string::npos) << first_line(out);
}

TEST(Findings, LeakNextToALargerPeak_HeadlineIsThePeakAndTheLeakIsNamedWithItsFigure) {
  constexpr double kMiB = 1 << 20;
  for (const double retained : {0.0, 2 * kMiB}) {  // memory is relative to the peak, so 0 is no special case
    CellRecord was = clean("a"), is = clean("a");
    for (CellRecord* cell : {&was, &is}) {
      const bool now = cell == &is;
      ArmResult& after = cell->arms[Arm::kAfter];
      after.metrics["memory.retained_bytes"] = bytes(retained + (now ? kMiB : 0));
      after.metrics["memory.forward_peak_bytes"] = bytes(500 * kMiB + (now ? 64 * kMiB : 0));
      after.metrics[kPeak] = bytes(1000 * kMiB + (now ? 64 * kMiB : 0));
      after.peak_by_holder = {{"workspace", now ? 64 << 20 : 0}};
    }
    const std::string line = first_line(compare_runs(run_of({was}), run_of({is})));
    EXPECT_TRUE(line.starts_with("a: after memory.forward_peak_bytes +64.0 MiB (+12.8 %): 500.0 MiB -> 564.0 MiB") ||
                line.starts_with("a: after memory.peak_bytes +64.0 MiB (+6.4 %): 1000.0 MiB -> 1.04 GiB"))
        << line;
    EXPECT_NE(line.find(", from forward on, held by workspace (+64.0 MiB)"), std::string::npos) << line;
    EXPECT_NE(line.find("; with it memory.retained_bytes +1.00 MiB"), std::string::npos) << line;
  }
}

TEST(Findings, DoubledStepTimeIsReportedWithItsSpreadAndNotGated) {
  const auto slower = [](double factor) {
    CellRecord now = clean("a");
    ArmResult& after = now.arms[Arm::kAfter];
    *after.metrics["time.step_ms"].value *= factor;
    for (double& sample : after.samples["time.step_ms"]) sample *= factor;
    return compare_runs(run_of({clean("a")}), run_of({now}));
  };
  const RunComparison out = slower(2);
  EXPECT_EQ(first_line(out),
            "a: after time.step_ms 2.00 times as long: 10 ms -> 20 ms (quartiles 9.8 to 10.2 and 19.6 to 20.4 ms, 5 "
            "and 5 samples; not gated)");
  EXPECT_EQ(out.exit_code(), 0);
  EXPECT_TRUE(slower(1.02).findings.empty()) << "within the spread";
  EXPECT_TRUE(slower(0.5).findings.empty());
}

TEST(Findings, NameTheFirstRunAndCommitSinceWhichTheyHold) {
  const auto run = [](const std::string& commit, bool leaks) {
    CellRecord now = clean("a");
    if (leaks) leak(now);
    StoredRun out = run_of({now});
    out.environment_json = R"({"program": {"git_commit": ")" + commit + R"(", "git_dirty": false}})";
    return out;
  };
  const RunComparison series =
      compare_series({run("aaaa", false), run("bbbb", true), run("cccc", false), run("dddd", true), run("eeee", true)});
  ASSERT_EQ(series.findings.size(), 1u);
  EXPECT_EQ(series.findings[0].since, "run 4, commit dddd (not at cccc)") << "run 2 was repaired in between";
  const RunComparison two = compare_series({run("aaaa", false), run("bbbb", true)});
  EXPECT_EQ(two.findings[0].since, "commit bbbb (not at aaaa)");
  EXPECT_NE(comparison_markdown(two).find("| a | after memory.retained"), std::string::npos)
      << comparison_markdown(two);
}

TEST(Findings, BetterCellsComeLastAndCellsOfOtherKeysHaveNone) {
  CellRecord better = cell("a"), worse = cell("b"), redefined = cell("c");
  peak(better, Arm::kAfter) -= 500;
  peak(worse, Arm::kAfter) += 1;
  redefined.config.model.seq = 64;
  const RunComparison out = compare_runs(run_of({cell("a"), cell("b"), cell("c")}), run_of({better, worse, redefined}));
  ASSERT_EQ(out.findings.size(), 2u);
  EXPECT_EQ(out.findings[0].id, "b");
  EXPECT_EQ(out.findings[1].direction, Direction::kBetter);
}

}  // namespace
}  // namespace fp8lab
