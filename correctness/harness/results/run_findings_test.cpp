#include "harness/results/run_findings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/results/record_list.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;

const std::string kRetained = "memory.retained_bytes";

Gate gate_on(Side side, const std::string& metric) {
  Gate out;
  out.text = metric;
  out.side = side;
  out.metric = metric;
  out.pass = true;
  return out;
}

ArmResult with(const std::string& metric, std::optional<double> value, std::optional<double> predicted = {}) {
  ArmResult out;
  out.metrics[metric] = {value, predicted, "B", ""};
  return out;
}

std::optional<Effect> effect(const std::string& metric, double before, double after, Side side = Side::kBefore) {
  return effect_of({{Arm::kBefore, with(metric, before)}, {Arm::kAfter, with(metric, after)}}, {gate_on(side, metric)});
}

CellRecord cell(const std::string& scenario, const std::string& fix, Verdict verdict, double retained = 0) {
  CellRecord out;
  out.config.scenario = scenario;
  out.config.id = scenario + "/device=meta";
  out.config.device = "meta";
  out.config.fix = fix;
  out.verdict = verdict;
  if (verdict == Verdict::kConfirmed)
    out.effect = effect_of({{Arm::kBefore, with(kRetained, retained, retained)}, {Arm::kAfter, with(kRetained, 0, 0)}},
                           {gate_on(Side::kBefore, kRetained)});
  return out;
}

std::vector<std::string> texts(const std::vector<CellRecord>& records) {
  std::vector<std::string> out;
  for (const RunFinding& finding : run_findings(record_list(records))) out.push_back(finding.text);
  return out;
}

TEST(Effect, LargestFigureThatAGateNames_IsTheEffect) {
  ArmResult before = with(kRetained, 618135552, 618135552), after = with(kRetained, 0, 0);
  before.metrics["memory.peak_bytes"] = {2000, {}, "B", ""};
  after.metrics["memory.peak_bytes"] = {1000, {}, "B", ""};
  before.metrics["memory.weight_bytes"] = {1e12, {}, "B", ""};  // no gate names it
  after.metrics["memory.weight_bytes"] = {0, {}, "B", ""};
  const auto found = effect_of({{Arm::kBefore, before}, {Arm::kAfter, after}},
                               {gate_on(Side::kBefore, "memory.peak_bytes"), gate_on(Side::kAfter, kRetained)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "589.5 MiB retained after backward -> 0");
  EXPECT_EQ(found->predicted, 618135552);
  EXPECT_TRUE(found->as_predicted);
}

TEST(Effect, BeforeThatCrashes_ComesBeforeEveryFigure) {
  ArmResult before, after = with(kRetained, 0);
  before.status = "crashed";
  before.signal = "SIGSEGV";
  const auto crash = effect_of({{Arm::kBefore, before}, {Arm::kAfter, after}}, {gate_on(Side::kAfter, kRetained)});
  ASSERT_TRUE(crash);
  EXPECT_EQ(crash->text, "SIGSEGV -> works");
  EXPECT_TRUE(is_larger(*crash, *effect(kRetained, 1e15, 0)));
}

TEST(Effect, ValuesThatDescribeTheDefect_ComeBeforeBytesAndOthersAfter) {
  const auto moved = effect("parity.weights_moved", 0, 1);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->text, "0 % of weight tensors moved -> 100 %");
  EXPECT_EQ(effect("parity.ranks_equal", 0, 1)->text, "ranks have different weights -> equal weights");
  const auto bytes = effect(kRetained, 1000, 0);
  EXPECT_TRUE(is_larger(*moved, *bytes));
  EXPECT_TRUE(is_larger(*bytes, *effect("parity.weights_moved", 0, 1, Side::kAfter)));
  EXPECT_TRUE(is_larger(*bytes, *effect("parity.loss_gap", 0.01, 0.0101))) << "within its slack";
}

TEST(Effect, FiguresThatRoundAlike_HaveTheirDifference) {
  const auto found = effect("memory.end_of_step_bytes", 42336, 42360);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text.find("41.3 KiB alive at the end of the step -> 41.3 KiB"), std::string::npos) << found->text;
  EXPECT_NE(found->text.find(", 24 B more, as expected"), std::string::npos) << found->text;
}

TEST(Effect, NanIsShownInWordsAndAbsentAsAFigure) {
  const auto found = effect("parity.loss_gap", std::nan(""), 0.01);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "parity.loss_gap nan -> 0.01");
  EXPECT_EQ(found->before, std::nullopt);
  EXPECT_EQ(found->after, 0.01);
}

TEST(Effect, AbsentOrEqualFigures_AreNone) {
  EXPECT_FALSE(effect(kRetained, 5, 5));
  EXPECT_FALSE(effect_of({{Arm::kAfter, with(kRetained, 5)}}, {gate_on(Side::kAfter, kRetained)}));
  EXPECT_FALSE(effect_of({{Arm::kBefore, with(kRetained, {})}, {Arm::kAfter, with(kRetained, 5)}},
                         {gate_on(Side::kAfter, kRetained)}));
}

TEST(RunFindings, OneForEachFixOverItsScenarios_LargestFirst) {
  EXPECT_EQ(
      texts({cell("a", "small", Verdict::kConfirmed, 1024), cell("b", "large", Verdict::kConfirmed, 4096),
             cell("c", "large", Verdict::kConfirmed, 8192), cell("d", "large", Verdict::kUnaffected)}),
      (std::vector<std::string>{"large: 8.00 KiB retained after backward -> 0, as predicted (2 of 3 cells, meta)",
                                "small: 1.00 KiB retained after backward -> 0, as predicted (1 of 1 cell, meta)"}));
}

TEST(RunFindings, EqualEffects_AreInTheOrderOfTheRun) {
  const auto found = texts({cell("a", "z", Verdict::kConfirmed, 8), cell("b", "y", Verdict::kConfirmed, 8),
                            cell("c", "x", Verdict::kConfirmed, 8)});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].starts_with("z: ") && found[1].starts_with("y: ") && found[2].starts_with("x: "));
}

TEST(RunFindings, FindingsAboutALibrary_NameIt) {
  CellRecord fails = cell("f", "", Verdict::kFail), passes = cell("p", "", Verdict::kPass);
  for (CellRecord* one : {&fails, &passes}) one->config.subject = "torchao";
  const auto found = run_findings(record_list({fails, passes, cell("o", "", Verdict::kPass)}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].text.find("fails with torchao on "), std::string::npos) << found[0].text;
  EXPECT_NE(found[1].text.find(", 1 of them with torchao on "), std::string::npos) << found[1].text;
  EXPECT_EQ(found[1].cell, "p/device=meta") << "a cell that holds";
}

TEST(RunFindings, FailedCellsComeFirstAndUnseenFixesLast) {
  CellRecord fails = cell("f", "", Verdict::kFail), skipped = cell("s", "gone", Verdict::kSkipped);
  fails.reason = "after memory.peak_bytes equals 1: measured 2";
  skipped.reason = "no device cuda";
  const auto found =
      run_findings(record_list({skipped, cell("u", "unseen", Verdict::kUnaffected), cell("p", "", Verdict::kPass),
                                cell("c", "x", Verdict::kConfirmed, 8), cell("i", "", Verdict::kInconclusive), fails}));
  std::vector<std::string> kinds;
  for (const RunFinding& finding : found) kinds.push_back(finding.kind);
  ASSERT_EQ(kinds, (std::vector<std::string>{"failed", "undecided", "bytes", "held", "unseen", "unseen"}));
  EXPECT_NE(found[0].text.find("measured 2"), std::string::npos) << found[0].text;
  EXPECT_FALSE(found[4].shown);
  EXPECT_EQ(found[4].reason, "no cell ran: no device cuda");
  EXPECT_EQ(found[5].reason, "before and after are equal in every figure that `expect` names");
}

TEST(RunFindings, LibraryIsNamedWithItsFigure) {
  CellRecord record = cell("a", "x", Verdict::kConfirmed, 8);
  record.config.subject = "torch";
  record.config.device = "cuda";
  EXPECT_NE(texts({record}).at(0).find("(1 of 1 cell, torch on cuda)"), std::string::npos) << texts({record}).at(0);
}

TEST(RunFindings, SurviveTheirRecordAndOlderRecordsHaveNone) {
  const CellRecord record = cell("a", "x", Verdict::kConfirmed, 8);
  const CellRecord read = record_from_json(record_to_json(record));
  EXPECT_EQ(texts({read}), texts({record}));
  Json older = Json::parse(record_to_json(record));
  EXPECT_EQ(older["finding"], "8 B retained after backward -> 0");
  older.erase("finding");
  older.erase("effect");
  EXPECT_EQ(texts({record_from_json(older.dump())}),
            std::vector<std::string>{"x: before and after differ (1 of 1 cell, meta)"});
}

TEST(RunFindings, FortyFixes_FitIntoTheLinesThatThereAre) {
  std::vector<CellRecord> records{cell("p", "", Verdict::kPass)};
  for (int i = 0; i < 40; ++i)
    records.push_back(cell(fmt::format("s{}", i), fmt::format("fix{}", i), Verdict::kConfirmed, 8 + i));
  for (int i = 0; i < 9; ++i)
    records.push_back(cell(fmt::format("u{}", i), fmt::format("unseen{}", i), Verdict::kUnaffected));
  const auto found = run_findings(record_list(records));
  for (const std::size_t most : {3, 8, 15}) {
    const auto lines = finding_lines(found, most);
    EXPECT_EQ(lines.size(), most);
    if (most > 3) {
      EXPECT_TRUE(lines.front().starts_with("fix39: ")) << lines.front();
    }
    EXPECT_TRUE(lines.back().ends_with("unseen5 and 3 more")) << lines.back();
  }
}

TEST(RunFindings, HostileText_IsEscapedAndCut) {
  CellRecord record = cell("a", "", Verdict::kFail);
  record.reason = "\033[2J::error::x\n" + std::string(5000, 'x');
  const auto found = run_findings(record_list({record}));
  const auto lines = finding_lines(found, 15);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].find_first_of("\033\n"), std::string::npos);
  EXPECT_LE(lines[0].size(), 304u);
  EXPECT_EQ(Json::parse(findings_to_json(found))[0]["kind"], "failed");
}

}  // namespace
}  // namespace fp8lab
