#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/results/compare/acceptance.h"
#include "harness/results/compared_runs.h"
#include "harness/results/job/job_summary.h"
#include "harness/results/record_list.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

// What a run reports to a CI system. correctness/ci runs the program as a CI system does.
namespace fp8lab {
namespace {

constexpr const char* kControl = "sample/control=same";

CellRecord failed(int number) {
  CellRecord out = sample::cell(fmt::format("s{}/x=1", number), Verdict::kFail);
  out.config.scenario = fmt::format("s{}", number);
  out.file = fmt::format("{}.yaml", number);
  out.reason = "too much " + std::string(200, 'x');
  return out;
}

std::vector<CellRecord> many_failed(int count) {
  std::vector<CellRecord> out;
  for (int i = 0; i < count; ++i) out.push_back(failed(i));
  return out;
}

JobReport report_of(const std::vector<CellRecord>& cells) {
  return {.title = "fp8lab t", .code = 1, .meaning = "m", .records = record_list(cells)};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t out = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
  return out;
}

TEST(Annotations, EscapeWhatWouldEndThem) {
  EXPECT_EQ(annotation("error", "a:b,c", "x%\ny\x1b", "f,1.yaml", 3),
            "::error file=f%2C1.yaml,line=3,title=a%3Ab%2Cc::x%25%0Ay\\x1b");
  EXPECT_EQ(annotation("warning", "t", "::error::y"), "::warning title=t::::error::y");
}

TEST(Annotations, AnUndecidedControlIsNoComplaint) {
  CellRecord cell = sample::cell(kControl, Verdict::kInconclusive);
  cell.gates.front().pass.reset();
  cell.gates.front().observed = cell.gates.front().limit = 1;
  EXPECT_TRUE(complaints(report_of({cell})).empty());
  CellRecord plain = cell, absent = cell, wrong = cell;
  plain.config.id = "sample/model.batch=1";
  absent.gates.front().observed.reset();
  wrong.verdict = Verdict::kFail;
  for (const CellRecord& one : {plain, absent, wrong}) EXPECT_EQ(complaints(report_of({one})).size(), 1U);
}

TEST(Annotations, AreAtMostTenAndCountTheRest) {
  const std::string lines = complaint_lines(report_of(many_failed(12)), true);
  EXPECT_EQ(count(lines, "::error "), 10U);
  EXPECT_NE(lines.find("::error title=fp8lab t::and 3 more; see the summary\n"), std::string::npos) << lines;
  EXPECT_EQ(count(complaint_lines(report_of(many_failed(12)), false), ": error: fail: "), 12U);
  EXPECT_EQ(count(complaint_lines(report_of(many_failed(10)), true), "more; see"), 0U);
}

TEST(Annotations, CellsOfOnePlaceAreOne) {
  std::vector<CellRecord> cells = many_failed(3);
  for (CellRecord& cell : cells) cell.file = "same.yaml";
  const std::vector<Complaint> found = complaints(report_of(cells));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found.front().message.ends_with(" (and 2 more like it)"));
}

TEST(Annotations, HostileTextsStayInTheirLine) {
  for (const std::string text : {"x\n::error::y", "\x1b[31m", "::error::y", "`|`<b>", "\xed\xa0\x80", "a\r\nb"}) {
    CellRecord cell = failed(0);
    cell.reason = cell.file = text;
    cell.config.id = text;
    JobReport report = report_of({cell});
    report.errors = {text};
    for (const bool github : {true, false}) {
      const std::string lines = complaint_lines(report, github);
      EXPECT_EQ(count(lines, "\n"), 1U) << lines;
      EXPECT_TRUE(std::ranges::all_of(
          lines, [](char c) { return c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 32; }));
    }
    const std::string summary = job_summary(report, "", 100000);
    EXPECT_EQ(count(summary, "\n::"), 0U) << summary;
    EXPECT_EQ(count(summary, "\x1b"), 0U) << summary;
  }
}

TEST(JobSummary, IsLimitedInSizeAndListsFailuresFirst) {
  std::string text = "# fp8lab\n\n## Needs attention\n\n";
  for (int i = 0; i < 300; ++i) text += fmt::format("### fail: `s/{}`\n\n{}\n\n", i, std::string(3000, 'y'));
  for (int i = 0; i < 300; ++i) text += fmt::format("## s{}\n\n{}\n\n", i, std::string(6000, 'z'));
  const JobReport report = report_of(many_failed(300));
  for (const std::size_t budget : {std::size_t{20000}, std::size_t{200000}, kMostSummaryBytes}) {
    const std::string summary = job_summary(report, text, budget);
    EXPECT_LE(summary.size(), budget);
    EXPECT_GT(summary.size(), budget * 6 / 10);
    EXPECT_EQ(count(summary, "more sections do not fit here"), 1U);
    EXPECT_EQ(count(summary, "fail: `s/0`"), 1U);
  }
  const std::string all = job_summary(report, text, 10000000);
  EXPECT_EQ(count(all, "do not fit"), 0U);
  EXPECT_EQ(count(all, "\n## s"), 300U);
  EXPECT_LT(all.find("## Needs attention"), all.find("Every figure"));
}

TEST(JobSummary, TheFileOfTheStepNeverGrowsBeyondItsLimit) {
  const sample::TemporaryDirectory folder;
  const std::string path = (folder / "step").string();
  std::ofstream(path) << std::string(kMostSummaryBytes - 10000, 'z');
  ::setenv("GITHUB_STEP_SUMMARY", path.c_str(), 1);
  const std::string failure = append_job_summary(report_of({}), "# fp8lab\n\n## s\n\n" + std::string(20000, 'x'));
  ::unsetenv("GITHUB_STEP_SUMMARY");
  EXPECT_EQ(failure, "");
  const std::string text = read_regular_file(path);
  EXPECT_LE(text.size(), kMostSummaryBytes);
  EXPECT_GT(text.size(), kMostSummaryBytes - 10000);
}

RunComparison worse_peak() {
  CellRecord now = sample::cell("sample/x=1");
  sample::peak(now, Arm::kAfter) += 24;
  return compare_runs(sample::run_of({sample::cell("sample/x=1")}), sample::run_of({now}));
}

std::vector<Acceptance> acceptances(const sample::TemporaryDirectory& folder, const std::string& text) {
  const auto path = folder / "accepted.toml";
  std::ofstream(path) << text;
  return read_acceptances(path);
}

std::string entry(const std::string& limit, const std::string& expires = "2027-03-31") {
  return fmt::format("[[accept]]\ncells = 'x=1$'\nmetric = 'memory.peak_bytes'\n{}\nexpires = {}\nwhy = '#1'\n", limit,
                     expires);
}

TEST(Acceptance, CoversAFigureUpToItsLimitUntilItsDate) {
  const sample::TemporaryDirectory folder;
  for (const auto& [limit, today, accepted] :
       {std::tuple("at_most = 1024", "2027-03-31", true), std::tuple("at_most = 1023.5", "2027-03-31", false),
        std::tuple("at_most = 2048", "2026-01-01", true), std::tuple("at_most = 1024", "2027-04-01", false)}) {
    RunComparison comparison = worse_peak();
    ASSERT_EQ(comparison.exit_code(), 1);
    const Accepted found = accept(acceptances(folder, entry(limit)), comparison, today);
    EXPECT_EQ(comparison.exit_code(), accepted ? 0 : 1) << limit;
    EXPECT_EQ(found.changes.size(), accepted ? 1U : 0U);
    EXPECT_EQ(found.warnings.size(), accepted ? 0U : 1U);
  }
}

TEST(Acceptance, MistakesNameFileAndEntry) {
  const sample::TemporaryDirectory folder;
  const std::string good = entry("at_most = 1");
  for (const auto& [text, message] :
       {std::pair(good + "at_least = 1\n", "entry 1: give one of `at_most` and `at_least`"),
        std::pair(entry("at_most = inf"), "entry 1: `at_most` cannot be inf"),
        std::pair(good + entry("at_most = 1", "2027-03-31T00:00:00"),
                  "entry 2: `expires` cannot be 2027-03-31T00:00:00"),
        std::pair(entry("at_most = nan"), "entry 1: `at_most` cannot be nan"),
        std::pair(entry(""), "entry 1: give one of `at_most` and `at_least`"),
        std::pair(entry("at_most = 1", "'soon'"), "entry 1: `expires` cannot be 'soon'"),
        std::pair(good + "kind = 'vanished'\n", "entry 1: give one of `metric` and `kind`"),
        std::pair(std::string("[[accept]]\ncells = '.'\nexpires = 2027-03-31\nwhy = '#1'\n"),
                  "entry 1: give one of `metric` and `kind`"),
        std::pair(std::string("[[accept]]\ncells = '.'\nkind = 'appeared'\nexpires = 2027-03-31\nwhy = '#1'\n"),
                  "entry 1: `kind` cannot be 'appeared'; there are vanished,"),
        std::pair(std::string("[[accept]]\ncells = '.'\nkind = 'vanished'\nat_most = 1\nexpires = 2027-03-31\n"
                              "why = '#1'\n"),
                  "entry 1: `at_most` belongs to a `metric`"),
        std::pair(std::string("[[accept]]\ncells = '('\nmetric = 'memory.peak_bytes'\nat_most = 1\n"
                              "expires = 2027-03-31\nwhy = '#1'\n"),
                  "entry 1: `cells` is no regular expression"),
        std::pair(std::string("[[accept]]\ncells = '.'\nmetric = 'memory.peak_bytes'\nat_most = 1\n"
                              "expires = 2027-03-31\n"),
                  "entry 1: `why` is missing"),
        std::pair(entry("at_least = 1"),
                  "entry 1: memory.peak_bytes is better if it is less, so `at_least` would accept every regression; "
                  "write `at_most`"),
        std::pair(std::string("[[accept]]\ncells = '.'\nmetric = 'memory.peek_bytes'\nat_most = 1\n"
                              "expires = 2027-03-31\nwhy = '#1'\n"),
                  "entry 1: `metric` cannot be `memory.peek_bytes`. Did you mean `memory.peak_bytes`?"),
        std::pair(good + "whyy = 1\n", "entry 1: `whyy` is not known; did you mean why?"),
        std::pair(std::string("accept = 1\n"), "only tables [[accept]] belong here"),
        std::pair(std::string("accept = [1]\n"), "entry 1: not a table"),
        std::pair(std::string("[[accept\n"), "not TOML: line 1")}) {
    const std::string error = support::error_of([&, text = text] { acceptances(folder, text); });
    EXPECT_NE(error.find(std::string("accepted.toml: ") + message), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace fp8lab
