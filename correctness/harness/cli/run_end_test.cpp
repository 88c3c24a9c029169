#include "harness/cli/run/run_end.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/results/record_list.h"

namespace fp8lab {
namespace {

CellRecord cell(Verdict verdict, const std::string& reason = "") {
  CellRecord out;
  out.config.id = out.config.scenario = "s";
  out.verdict = verdict;
  out.reason = reason;
  return out;
}

TEST(ExitWords, NameTheCellsThatDecideTheCode) {
  const auto words = [](int code, const std::vector<CellRecord>& records) {
    return exit_words(code, record_list(records));
  };
  const CellRecord good = cell(Verdict::kPass), skipped = cell(Verdict::kSkipped, "torch is not installed");
  EXPECT_EQ(words(0, {good}), "the cell came out as its scenario expects");
  EXPECT_EQ(words(0, {good, good, skipped, skipped}),
            "all 2 cells that ran came out as their scenarios expect; 2 did not run: torch is not installed");
  EXPECT_EQ(words(1, {good, cell(Verdict::kRegressed)}), "1 of 2 cells did not come out as its scenario expects");
  EXPECT_EQ(words(3, {good, cell(Verdict::kInconclusive)}),
            "no cell failed, and not every cell is decided; 1 is inconclusive");
  EXPECT_EQ(words(3, {cell(Verdict::kUnaffected)}), "no cell of a scenario shows what its fix fixes");
  EXPECT_EQ(words(5, {skipped}), "nothing ran; 1 did not run: torch is not installed");
  EXPECT_EQ(words(124, {good, cell(Verdict::kTimeout)}), "1 of 2 cells took longer than its time limit");
}

TEST(EndOfRun, FortyFindings_TakeAtMostFifteenLines) {
  RunFinding one;
  one.text = "x";
  one.kind = "bytes";
  one.fix = "f";
  const std::vector<RunFinding> findings(40, one);
  for (std::size_t tail = 1; tail <= 12; ++tail) {
    const std::string text = end_of_run(findings, std::vector<std::string>(tail, "line"));
    EXPECT_EQ(std::ranges::count(text, '\n'), static_cast<std::ptrdiff_t>(kMostEndLines)) << tail;
  }
}

}  // namespace
}  // namespace fp8lab
