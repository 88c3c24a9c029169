#include "harness/results/compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cli/schema/schemas.h"
#include "harness/results/compared_runs.h"
#include "harness/results/json_schema.h"
#include "harness/results/record_list.h"
#include "harness/results/results.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using sample::cell;
using sample::kPeak;
using sample::kSqnr;
using sample::peak;
using sample::run_of;

/// Compares a run of one cell with the same run after `mutate` has changed it.
template <class Mutate>
RunComparison compared(Mutate mutate) {
  CellRecord now = cell("sample/a=1");
  mutate(now);
  return compare_runs(run_of({cell("sample/a=1")}), run_of({now}));
}

TEST(Compare, RunEqualsItself) {
  const StoredRun run = run_of({cell("sample/a=1"), cell("sample/a=2", Verdict::kFail)});
  const RunComparison same = compare_runs(run, run);
  EXPECT_EQ(same.changes.size(), 0u);
  EXPECT_EQ(same.cells_compared, 2u);
  EXPECT_EQ(same.exit_code(), 0);
}

TEST(Compare, OneByteMoreInAnyArmIsARegressionAndOneLessIsNot) {
  for (const Arm arm : {Arm::kBefore, Arm::kAfter}) {
    const RunComparison more = compared([&](CellRecord& c) { peak(c, arm) += 1; });
    ASSERT_EQ(more.regressions(), 1u);
    EXPECT_EQ(more.exit_code(), 1);
    EXPECT_EQ(more.changes[0].arm, name(arm));
    EXPECT_EQ(more.changes[0].line, arm == Arm::kAfter ? 7 : 2) << "the gate's line, else the scenario's";
    const RunComparison less = compared([&](CellRecord& c) { peak(c, arm) -= 1; });
    EXPECT_EQ(less.exit_code(), 0);
    EXPECT_EQ(less.count(Direction::kBetter), 1u);
  }
}

TEST(Compare, LessIsARegressionBeyondTheSlackWhereMoreIsBetter) {
  const auto by = [](double db) {
    return compared([&](CellRecord& c) { *c.arms[Arm::kAfter].metrics[kSqnr].value += db; });
  };
  EXPECT_EQ(by(-0.6).exit_code(), 1);
  EXPECT_EQ(by(-0.4).exit_code(), 0);
  EXPECT_EQ(by(-0.4).changes.size(), 1u) << "reported all the same";
  EXPECT_EQ(by(0.6).count(Direction::kBetter), 1u);
}

TEST(Compare, SlackMayBeRelativeToTheBaseline) {
  const auto exit_code = [](double was, double is) {
    CellRecord before = cell("a"), now = cell("a");
    before.arms[Arm::kAfter].metrics["parity.loss_gap"] = {was, {}, "1", ""};
    now.arms[Arm::kAfter].metrics["parity.loss_gap"] = {is, {}, "1", ""};
    return compare_runs(run_of({before}), run_of({now})).exit_code();
  };
  EXPECT_EQ(exit_code(0.01, 0.0199), 0);
  EXPECT_EQ(exit_code(0.01, 0.0201), 1);
  EXPECT_EQ(exit_code(0, 0.99e-4), 0);
  EXPECT_EQ(exit_code(0, 1.01e-4), 1);
}

TEST(Compare, SlackOfADifferenceIsNamed) {
  const auto text = [](double was, double is, const std::string& metric) {
    CellRecord before = cell("a"), now = cell("a");
    before.arms[Arm::kAfter].metrics[metric] = {was, {}, "1", ""};
    now.arms[Arm::kAfter].metrics[metric] = {is, {}, "1", ""};
    return text_of(compare_runs(run_of({before}), run_of({now})).changes.at(0));
  };
  EXPECT_EQ(text(0.01, 0.019, "parity.loss_gap"),
            "after parity.loss_gap: 0.01 -> 0.019 (+90 %), within its slack of 100 %");
  EXPECT_EQ(text(0, 0.00005, "parity.loss_gap"), "after parity.loss_gap: 0 -> 5e-05, within its slack of 0.0001");
  EXPECT_TRUE(text(30, 29.75, kSqnr).ends_with(", within its slack of 0.5 dB"));
  EXPECT_EQ(text(0.01, 0.03, "parity.loss_gap").find("slack"), std::string::npos) << "it is worse";
}

TEST(Compare, LostFigureIsARegressionAndAGainedOneIsNot) {
  const auto lose = [](CellRecord& c) {
    c.arms[Arm::kAfter].metrics[kPeak] = {{}, 1000, "B", "the measured value is nan"};
  };
  const RunComparison lost = compared(lose);
  ASSERT_EQ(lost.regressions(), 1u);
  EXPECT_NE(comparison_text(lost).find("nan"), std::string::npos);
  EXPECT_EQ(compared([](CellRecord& c) { c.arms[Arm::kAfter].metrics.erase(kPeak); }).exit_code(), 1);
  CellRecord before = cell("sample/a=1");
  lose(before);
  EXPECT_EQ(compare_runs(run_of({before}), run_of({cell("sample/a=1")})).exit_code(), 0);
}

TEST(Compare, SharesAndClocksAreReportedAndNotJudged) {
  const RunComparison out = compared([](CellRecord& c) {
    *c.arms[Arm::kAfter].metrics["memory.by_holder.parameter"].value += 1000;
    *c.arms[Arm::kAfter].metrics["host.pre_forward_ns"].value *= 10;
  });
  EXPECT_EQ(out.exit_code(), 0);
  EXPECT_EQ(out.count(Direction::kNeutral), 1u);
  ASSERT_EQ(out.timings.size(), 1u);
  EXPECT_EQ(out.timings[0].is, 1000);
  EXPECT_NE(comparison_text(out).find("10.00 times"), std::string::npos);
}

TEST(Compare, WorseVerdictIsARegression) {
  const Verdict ladder[] = {Verdict::kConfirmed, Verdict::kInconclusive, Verdict::kNotFixed, Verdict::kTimeout,
                            Verdict::kCrashed};
  for (std::size_t was = 0; was < std::size(ladder); ++was)
    for (std::size_t is = 0; is < std::size(ladder); ++is) {
      const RunComparison out = compare_runs(run_of({cell("a", ladder[was])}), run_of({cell("a", ladder[is])}));
      EXPECT_EQ(out.exit_code(), is > was ? 1 : 0) << name(ladder[was]) << " -> " << name(ladder[is]);
    }
  EXPECT_EQ(compare_runs(run_of({cell("a", Verdict::kNotFixed)}), run_of({cell("a", Verdict::kFail)})).exit_code(), 0);
}

TEST(Compare, ControlThatNoiseLeavesUndecidedIsNoRegression) {
  for (const char* const id : {"a/control=same", "a/control=planted"}) {
    CellRecord noisy = cell(id, Verdict::kInconclusive);
    ASSERT_FALSE(noisy.gates.empty());
    noisy.gates[0].pass.reset();
    noisy.gates[0].observed = noisy.gates[0].limit = 1;
    CellRecord unmeasured = noisy;
    unmeasured.gates[0].observed.reset();
    const StoredRun decided = run_of({cell(id, Verdict::kPass)}), undecided = run_of({noisy});
    EXPECT_EQ(compare_runs(decided, undecided).exit_code(), 0) << id;
    EXPECT_EQ(compare_runs(decided, run_of({unmeasured})).exit_code(), 1) << id << ": a figure is absent";
    EXPECT_EQ(compare_runs(undecided, run_of({cell(id, Verdict::kFail)})).exit_code(), 1) << id;
  }
}

TEST(Compare, VanishedCellsAreRegressionsAndNewOnesAreNot) {
  const StoredRun one = run_of({cell("a")}), two = run_of({cell("a"), cell("b")});
  EXPECT_EQ(compare_runs(two, one).exit_code(), 1);
  EXPECT_EQ(compare_runs(one, two).exit_code(), 0);
  const StoredRun skipped = run_of({cell("a"), cell("b", Verdict::kSkipped)});
  EXPECT_EQ(compare_runs(two, skipped).exit_code(), 1) << "a skipped cell has no result";
  EXPECT_EQ(compare_runs(skipped, two).exit_code(), 0);
  EXPECT_EQ(compare_runs(skipped, one).exit_code(), 0);
  const RunComparison new_failure = compare_runs(one, run_of({cell("a"), cell("b", Verdict::kFail)}));
  EXPECT_EQ(new_failure.exit_code(), 0) << "its own run fails for it";
}

TEST(Compare, ArmThatEndsInAnotherWayIsReportedOnce) {
  const RunComparison out = compared([](CellRecord& c) {
    c.arms[Arm::kBefore].status = "crashed";
    c.arms[Arm::kBefore].metrics.clear();
  });
  ASSERT_EQ(out.changes.size(), 1u);
  EXPECT_EQ(out.changes[0].kind, ChangeKind::kArm);
  EXPECT_EQ(out.exit_code(), 1);
  EXPECT_EQ(compared([](CellRecord& c) { c.arms.erase(Arm::kBefore); }).exit_code(), 1);
}

TEST(Compare, ATextIsWhatItHoldsAndNotWhereItIs) {
  const auto changes = [](const char* path, const char* checksum) {
    CellRecord was = cell("c"), is = cell("c");
    was.config.training.corpus = "texts/a";
    was.text_checksum = "00000000000000aa";
    is.config.training.corpus = path;
    is.text_checksum = checksum;
    return compare_runs(run_of({was}), run_of({is})).changes;
  };
  EXPECT_TRUE(changes("texts/a", "00000000000000aa").empty());
  EXPECT_TRUE(changes("/home/me/texts/a", "00000000000000aa").empty());
  EXPECT_TRUE(changes("texts/a", "").empty());  // written by an earlier version
  for (const auto& [path, checksum] : {std::pair{"texts/a", "00000000000000bb"}, {"texts/b", ""}}) {
    ASSERT_EQ(changes(path, checksum).size(), 1u);
    EXPECT_EQ(changes(path, checksum)[0].kind, ChangeKind::kRedefined);
  }
}

TEST(Compare, RedefinedCell_ShowsBothFiguresAndGatesNone) {
  const RunComparison out = compared([](CellRecord& c) {
    c.config.model.seq = 64;
    peak(c, Arm::kAfter) = 5000;
    c.arms[Arm::kAfter].metrics["memory.by_holder.parameter"].value = 4400;
    c.arms[Arm::kAfter].metrics["host.pre_forward_ns"].value = 300;
    c.verdict = Verdict::kInconclusive;
  });
  EXPECT_EQ(out.cells_compared, 0u);
  EXPECT_EQ(out.cells_redefined, 1u);
  EXPECT_EQ(out.regressions(), 0u) << "the gates of its own run judge it";
  EXPECT_EQ(out.exit_code(), 0);
  EXPECT_TRUE(out.findings.empty());
  EXPECT_TRUE(out.timings.empty()) << "times of two shapes have no ratio";
  ASSERT_FALSE(out.changes.empty());
  EXPECT_EQ(out.changes[0].kind, ChangeKind::kRedefined);
  EXPECT_EQ(out.changes[0].is_text, "model.seq=64");
  for (const std::string& text : {comparison_text(out), comparison_markdown(out)}) {
    EXPECT_NE(text.find("after memory.peak_bytes: 1,000 B -> 4.88 KiB (5,000 B) (+400 %)"), std::string::npos) << text;
    EXPECT_NE(text.find("not gated"), std::string::npos) << text;
    EXPECT_NE(text.find("host.pre_forward_ns"), std::string::npos) << text;
    EXPECT_EQ(text.find("by_holder"), std::string::npos) << text;
    EXPECT_NE(text.find("no regression in 0 cells; 1 cell redefined and not gated"), std::string::npos) << text;
  }
  EXPECT_EQ(compared([](CellRecord& c) { c.config.model.seq = 64; }).exit_code(), 0);
}

TEST(Compare, AllCellsVanishedWithPermission_ExitsZero) {
  const auto all = [](const std::string&) { return true; };
  EXPECT_EQ(compare_runs(run_of({cell("a")}), run_of({cell("b")}), all).exit_code(), 0);
  EXPECT_EQ(compare_runs(run_of({}), run_of({cell("b")}), all).exit_code(), 5);
}

// A run that passes because its limit was raised is no better run.
TEST(Compare, OtherGatesAreReportedAndMakeNoVerdictBetter) {
  const auto gated = [](Verdict verdict, const std::string& text) {
    CellRecord out = cell("a", verdict);
    out.gates.assign(1, Gate{});
    out.gates.front().text = text;
    return out;
  };
  const std::string low = "after memory.peak_bytes is at most 400 MiB",
                    high = "after memory.peak_bytes is at most 40 GiB";
  const RunComparison raised =
      compare_runs(run_of({gated(Verdict::kFail, low)}), run_of({gated(Verdict::kPass, high)}));
  EXPECT_EQ(raised.count(Direction::kBetter), 0u);
  EXPECT_EQ(raised.exit_code(), 0);
  for (const std::string& text : {comparison_text(raised), comparison_markdown(raised)})
    EXPECT_NE(text.find("its gates changed; was: " + low + "; is: " + high), std::string::npos) << text;
  const RunComparison kept = compare_runs(run_of({gated(Verdict::kFail, low)}), run_of({gated(Verdict::kPass, low)}));
  EXPECT_EQ(kept.count(Direction::kBetter), 1u);
  CellRecord without = gated(Verdict::kPass, low);
  without.gates.clear();
  const RunComparison removed = compare_runs(run_of({gated(Verdict::kPass, low)}), run_of({without}));
  ASSERT_EQ(removed.changes.size(), 1u);
  EXPECT_EQ(text_of(removed.changes[0]), "its gates changed; was: " + low + "; is: none");
  EXPECT_EQ(compare_runs(run_of({gated(Verdict::kPass, high)}), run_of({gated(Verdict::kFail, low)})).exit_code(), 1);
}

TEST(Compare, WhatIsWorseOneWayIsBetterTheOtherWay) {
  CellRecord small = cell("a"), large = cell("a");
  small.arms[Arm::kAfter].metrics["parity.loss_gap"] = {0.000585, {}, "1", ""};
  large.arms[Arm::kAfter].metrics["parity.loss_gap"] = {0.5, {}, "1", ""};
  const RunComparison worse = compare_runs(run_of({small}), run_of({large}));
  EXPECT_EQ(worse.count(Direction::kWorse), 1u);
  EXPECT_NE(comparison_text(worse).find("855 times as much"), std::string::npos) << comparison_text(worse);
  EXPECT_EQ(compare_runs(run_of({large}), run_of({small})).count(Direction::kBetter), 1u);
}

TEST(Compare, MedianOfTwoTimingsLiesBetweenThem) {
  CellRecord slower = cell("b");
  *slower.arms[Arm::kAfter].metrics["host.pre_forward_ns"].value *= 2;
  const RunComparison out = compare_runs(run_of({cell("a"), cell("b")}), run_of({cell("a"), slower}));
  EXPECT_NE(comparison_text(out).find("1.00 to 2.00 times what it was, median 1.50"), std::string::npos)
      << comparison_text(out);
}

TEST(Compare, NothingInCommonDoesNotExitZero) {
  EXPECT_EQ(compare_runs(run_of({}), run_of({cell("a")})).exit_code(), 5);
  EXPECT_EQ(compare_runs(run_of({}), run_of({})).exit_code(), 5);
}

TEST(Compare, AllowedRegressionsAreReportedAndDoNotCount) {
  const RunComparison out = compare_runs(run_of({cell("a"), cell("b")}), run_of({cell("a")}),
                                         [](const std::string& id) { return id == "b"; });
  EXPECT_EQ(out.exit_code(), 0);
  EXPECT_NE(comparison_text(out).find("Worse, and allowed (1 cell)"), std::string::npos);
  CellRecord better = cell("a");
  peak(better, Arm::kAfter) -= 1;
  const RunComparison gain =
      compare_runs(run_of({cell("a")}), run_of({better}), [](const std::string&) { return true; });
  ASSERT_EQ(gain.changes.size(), 1u);
  EXPECT_FALSE(gain.changes[0].allowed) << "nothing had to be allowed";
}

TEST(Compare, DifferentMachinesAreNamed) {
  StoredRun other = run_of({cell("a")});
  other.environment_json = R"({"cpu": {"model": "y"}, "new": 1})";
  const RunComparison out = compare_runs(run_of({cell("a")}), other);
  ASSERT_EQ(out.environment.size(), 2u);
  EXPECT_EQ(out.environment[0].key, "cpu.model");
  EXPECT_EQ(out.environment[0].is, "y");
  EXPECT_EQ(out.exit_code(), 0);
}

TEST(Compare, DocumentFollowsItsSchema) {
  CellRecord worse = cell("a", Verdict::kNotFixed);
  peak(worse, Arm::kAfter) += 1;
  CellRecord redefined = cell("c");
  redefined.config.ranks = 2;
  CellRecord crashed = cell("d");
  crashed.arms[Arm::kAfter].status = "crashed";
  const RunComparison out = compare_runs(run_of({cell("a"), cell("b"), cell("c"), cell("d")}),
                                         run_of({worse, redefined, crashed, cell("e")}));
  const std::string text = comparison_json(out);
  EXPECT_EQ(sample::schema_violations(comparison_schema(), text), std::vector<std::string>{});
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json["regressions"], out.regressions());
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["changes"].size(), out.changes.size());
}

std::string error_of(const std::string& path) {
  return support::error_of([&] { load_run(path); });
}

TEST(Compare, CompressedRunIsRead) {
  const sample::TemporaryDirectory directory;
  sample::write((directory / "results.json").string(), results_json({cell("a")}, "{}", true));
  ASSERT_EQ(std::system(("gzip " + (directory / "results.json").string()).c_str()), 0);
  EXPECT_EQ(load_run(directory.string()).cells.size(), 1u);
  EXPECT_EQ(load_run((directory / "results.json.gz").string()).cells.size(), 1u);
  sample::write((directory / "results.json.gz").string(), "\x1f\x8b, but no archive");
  EXPECT_NE(error_of(directory.string()).find("cannot be uncompressed: unknown compression method"), std::string::npos);
}

TEST(Compare, RunIsReadFromItsFileOrItsDirectory) {
  const sample::TemporaryDirectory directory;
  const std::string file = (directory / "results.json").string();
  const std::vector<CellRecord> cells{cell("a"), cell("b")};
  sample::write(file, results_json(cells, "{}", false));
  for (const std::string& path : {file, directory.string()}) {
    const StoredRun run = load_run(path);
    EXPECT_FALSE(run.complete);
    ASSERT_EQ(run.cells.size(), 2u);
    EXPECT_EQ(run.cells[0].line, 2);
    EXPECT_EQ(run.cells[0].gates[0].line, 7);
  }
}

TEST(Compare, FileThatIsNoRunIsRefusedWithTheRemedy) {
  const sample::TemporaryDirectory directory;
  const std::string file = (directory / "results.json").string();
  EXPECT_NE(error_of(file).find(file + ": no such file; give"), std::string::npos);
  for (const char* text : {"", "{", "[]", "{}", R"({"schema": "fp8lab.results/9"})",
                           R"({"schema": "fp8lab.results/1", "complete": true, "environment": {}, "cells": [1]})"}) {
    sample::write(file, text);
    const std::string error = error_of(directory.string());
    EXPECT_TRUE(error.starts_with(file + ": ")) << error;
    EXPECT_NE(error.find("give the results.json of a finished run"), std::string::npos) << error;
  }
}

TEST(StoredRuns, MixtureOfTwoRunsIsRefused) {
  const CellRecord record = cell("sample/a=1");
  const std::string error =
      support::error_of([&] { run_from_json(results_json({record, cell("sample/a=2"), record}, "{}", true)); });
  EXPECT_EQ(error, "cell sample/a=1: `cells[2]` is there twice: results of two runs are mixed");
}

TEST(StoredRuns, ValueThatIsNoNumberIsRefused) {
  const std::string good = results_json({cell("sample/a=1")}, "{}", true);
  const std::string number = "\"value\":1000,";
  const std::size_t at = good.find(number);
  ASSERT_NE(at, std::string::npos) << good;
  for (const char* bad : {"\"many\"", "\"NaN\"", "[]"}) {
    std::string text = good;
    EXPECT_THROW(run_from_json(text.replace(at, number.size(), std::string("\"value\":") + bad + ",")), Error) << bad;
  }
  EXPECT_THROW(run_from_json(R"({"schema": "fp8lab.results/1", "complete": true, "environment": {}, "cells": null})"),
               Error);
}

}  // namespace
}  // namespace fp8lab
