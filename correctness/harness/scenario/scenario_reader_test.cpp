#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "harness/cli/listing.h"
#include "harness/results/json_codec.h"
#include "harness/results/mutations.h"
#include "harness/results/record_list.h"
#include "harness/results/reports.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/scenario.h"
#include "harness/temporary_directory.h"
#include "support/paths.h"

// The reader of scenario files, on files that no one should write: each is read, or refused by file, line and column,
// and the time is proportional to the size.
namespace fp8lab {
namespace {

/// A scenario like those that ship, with every key that a file may have.
const std::string kScenario = R"(version: 1
name: sample
title: "A sample \e[31m of all \"keys\""
upstream: [TransformerEngine#1935, "x\n::error::y"]
fix: release_attention_tensors
x-sizes: &sizes {hidden: 64, heads: 4}
model:
  <<: *sizes
  layer: transformer_layer
  form: gpt
  layers: 3
  ffn: 128
  seq: 32
  batch: 2
training: {steps: 1, optimizer: adam, recipe: delayed}
matrix:
  device: [cpu, meta]
  recipe: [delayed, mxfp8, bf16]
  checkpoint: [none, full]
exclude:
  - {device: cpu, recipe: mxfp8}
  - {recipe: bf16}
include:
  - {device: meta, recipe: delayed, keep_loss: false}
measure: [memory, parity]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted, when: {recipe: [delayed, mxfp8]}}
  - {metric: memory.retained_bytes, arm: after, at_most: 0, abs: 1}
  - {metric: parity.loss_gap, arm: after, within: [0, 0.5], when: {device: cpu}}
  - {arm: before, status: crashed, signal: SIGSEGV, when: {checkpoint: full}}
claims:
  - {source: "TransformerEngine#1935 <!--<script>", words: "20 | GB", metric: memory.retained_bytes, arm: difference, value: 20,
     unit: GB, note: "# not a heading"}
skip_if:
  - {when: {device: meta, checkpoint: full}, reason: "x\n::error::y \a"}
timeout: 60
)";

const std::vector<std::string> kYamlTokens{"&a ",        "\n, a",
                                           "*a",         "<<: ",
                                           "- ",         "? ",
                                           ": ",         "{",
                                           "}",          "[",
                                           "]",          "\"",
                                           "'",          "|\n",
                                           ">-\n",       "!!int ",
                                           "!x ",        "---\n",
                                           "# ",         "\t",
                                           "\x1b",       "\a",
                                           "\"\\e\"",    "\"\\0\"",
                                           "\xC0\xAF",   "\xED\xA0\x80",
                                           "\xC2\x9B",   "..",
                                           "0x10",       "1e999",
                                           "-1",         "99999999999999999999",
                                           ".nan",       "~",
                                           "true",       "null",
                                           "model:",     "matrix: {",
                                           "expect:\n",  "when: {",
                                           "device: ",   "\r",
                                           "[[[[[[[[[[", "when"};

const std::string kPlain = "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, heads: 1, seq: 1}\nmeasure: [memory]\n";

/// The error of reading the file, or ""; anything but a ScenarioError with a place fails the test.
std::string refusal(const std::string& text, const std::function<void(const std::vector<PlannedCell>&)>& use = {}) {
  try {
    const std::vector<PlannedCell> cells =
        plan_cells(parse_scenario(text, "f.yaml", bundled_vocabulary()), bundled_vocabulary());
    if (use) use(cells);
  } catch (const ScenarioError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("f.yaml:")) << error.what() << " of\n" << text;
    EXPECT_GT(error.place().line, 0) << error.what() << " of\n" << text;
    EXPECT_FALSE(sample::has_control_characters(error.what())) << error.what() << " of\n" << text;
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "a bare " << typeid(error).name() << ": " << error.what() << " of\n" << text;
  }
  return "";
}

/// Calls every function that prints the texts of a planned cell.
void show(const std::vector<PlannedCell>& cells) {
  for (const bool details : {false, true}) {
    EXPECT_FALSE(
        sample::has_control_characters(listing(cells, bundled_vocabulary(), {.details = details, .json = false})));
    EXPECT_TRUE(nlohmann::json::accept(listing(cells, bundled_vocabulary(), {.details = details, .json = true})));
  }
  std::vector<CellRecord> records;
  for (const PlannedCell& cell : cells) {
    CellRecord& record = records.emplace_back();
    record.config = cell.config;
    record.file = cell.file;
    record.title = cell.title;
    record.upstream = cell.upstream;
    record.verdict = Verdict::kSkipped;
    record.reason = cell.skip_reason;
    for (const Claim& claim : cell.claims) record.claims.push_back({claim, {}, {}});
    EXPECT_EQ(record_from_json(record_to_json(record)).config.id, cell.config.id);
  }
  const RunSummary summary{.date = "", .environment = "", .complete = true, .planned = cells.size(), .seconds = 0};
  EXPECT_FALSE(sample::has_control_characters(summary_markdown(records, summary)));
  EXPECT_FALSE(sample::has_control_characters(junit_xml(records, summary)));
}

TEST(ScenarioReader, SeedOfTheMutations_IsValidAndShownEscaped) { EXPECT_EQ(refusal(kScenario, show), ""); }

TEST(ScenarioReader, CommaWithoutAValue_IsRefusedAtItsPlace) {
  for (const char* stray : {",", ", a", ", a: 1"}) {
    EXPECT_EQ(refusal(stray), "f.yaml:1:1: this is not YAML: `,` has no meaning here");
    const std::string below = refusal(kPlain + stray + "\n");
    EXPECT_TRUE(below.starts_with("f.yaml:6:1: this is not YAML: ")) << below;
  }
  const std::string second = "a second document begins here; write one scenario per file, without `---`";
  EXPECT_EQ(refusal(kPlain + "---\n"), "f.yaml:6:1: " + second);
}

TEST(ScenarioReader, MutatedScenarios_AreReadOrRefusedByPlace) {
  std::vector<std::string> seeds{kScenario};
  for (const auto& file : find_scenario_files({paths::kScenarios})) seeds.push_back(sample::read(file));
  sample::Random random(3);
  int refused = 0, read = 0;
  for (int i = 0; i < sample::mutations(2000); ++i) {
    const std::string text = sample::mutated(i % 2 == 0 ? kScenario : random.one_of(seeds), kYamlTokens, random);
    const bool few = text.size() < 4000;  // showing thousands of cells would take too long
    (refusal(text, few ? show : std::function<void(const std::vector<PlannedCell>&)>()).empty() ? read : refused) += 1;
    if (HasFailure()) {
      ADD_FAILURE() << text;
      break;
    }
  }
  std::printf("scenarios: %d refused, %d read\n", refused, read);
  EXPECT_GT(refused, 0);
  EXPECT_GT(read, 0);
}

std::string repeated(int count, const std::function<std::string(int)>& part) {
  std::string out;
  for (int i = 0; i < count; ++i) out += part(i);
  return out;
}

std::string number(int i) { return std::to_string(i); }

/// A file that was once read in time proportional to the square of `size`.
struct Growing {
  const char* name;
  std::function<std::string(int size)> text;
  int size;
};

std::vector<Growing> growing() {
  return {
      {"keys of one map",
       [](int n) { return kPlain + "x-a:\n" + repeated(n, [](int i) { return "  k" + number(i) + ": 1\n"; }); }, 10000},
      {"keys that a merge provides",
       [](int n) {
         return kPlain + "x-a: &a\n" + repeated(n, [](int i) { return "  k" + number(i) + ": 1\n"; }) +
                "x-b: {<<: *a, k0: 2}\n";
       },
       5000},
      {"values of one axis",
       [](int n) {
         return kPlain + "matrix:\n  seq: [1" + repeated(n, [](int i) { return "," + number(i + 2); }) + "]\n";
       },
       6000},
      {"conditions, and cells",
       [](int n) {
         return kPlain + "matrix:\n  seq: [1" + repeated(n, [](int i) { return "," + number(i + 2); }) +
                "]\n  device: [cpu, meta]\nexpect:\n" + repeated(n / 2, [](int i) {
                  return "  - {metric: memory.peak_bytes, at_most: 1, when: {device: cpu, seq: " + number(i + 1) +
                         "}}\n";
                });
       },
       1000},
      {"points that only `include` makes",
       [](int n) {
         return kPlain + "include:\n" + repeated(n, [](int i) { return "  - {seq: " + number(i + 1) + "}\n"; }) +
                "skip_if:\n" +
                repeated(n, [](int i) { return "  - {reason: r, when: {seq: " + number(i + 1) + "}}\n"; });
       },
       1500},
  };
}

/// CPU seconds of this process only, so that other processes do not count.
double cpu_seconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// The ratio of the times of `work` at four times the size and at `size`: 4 if it is linear, 16 if it is quadratic. The
/// least of three measurements.
double growth(int size, const std::function<void(int)>& work) {
  double small = INFINITY, large = INFINITY;
  for (int i = 0; i < 3; ++i) {
    small = std::min(small, cpu_seconds([&] { work(size); }));
    large = std::min(large, cpu_seconds([&] { work(4 * size); }));
  }
  return large / small;
}

TEST(ScenarioReader, FourTimesTheFile_TakesLessThanEightTimesTheTime) {
  for (const Growing& one : growing()) {
    EXPECT_EQ(refusal(one.text(4 * one.size)), "") << one.name;
    EXPECT_LT(growth(one.size, [&](int size) { refusal(one.text(size)); }), 8) << one.name;
  }
}

TEST(ScenarioReader, FourTimesTheFiles_AreFoundInLessThanEightTimesTheTime) {
  const sample::TemporaryDirectory directory;
  constexpr int kFiles = 300;
  std::vector<std::string> paths;
  for (int i = 0; i < 4 * kFiles; ++i) {
    const auto file = directory / ("s" + number(i) + ".yaml");
    sample::write(file, "");
    paths.push_back(file.string());
  }
  const auto find = [&](int count) {
    const auto found = find_scenario_files({paths.begin(), paths.begin() + count});
    EXPECT_EQ(found.size(), static_cast<std::size_t>(count));
  };
  EXPECT_LT(growth(kFiles, find), 8);
}

TEST(ScenarioReader, FileWithTwoNames_IsReadOnce) {
  const sample::TemporaryDirectory directory;
  const std::string file = (directory / "a.yaml").string(), link = (directory / "b.yaml").string();
  sample::write(file, kPlain);
  std::filesystem::create_hard_link(file, link);
  EXPECT_EQ(find_scenario_files({file, link, directory.string(), (directory / ".").string()}).size(), 1u);
}

TEST(ScenarioReader, FileThatExpandsBeyondTheMemory_IsRefused) {
  const std::string page(400000, 'x');
  const std::string axes = "matrix:\n  seq: [1" + repeated(999, [](int i) { return "," + number(i + 2); }) +
                           "]\n  batch: [1" + repeated(9, [](int i) { return "," + number(i + 2); }) + "]\n";
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(contains(refusal(kPlain + "upstream: [" + page + "]\n" + axes),
                       "`matrix`: 10000 cells, with their texts of the file"));
  EXPECT_TRUE(contains(refusal(kPlain + axes + "skip_if: [{reason: " + page + ", when: {batch: [1, 2, 3]}}]\n"),
                       "`matrix`: 10000 cells"));
  const std::string entries =
      repeated(4000, [](int) { return std::string("  - {metric: memory.peak_bytes, at_most: 1}\n"); });
  EXPECT_TRUE(contains(refusal(kPlain + axes + "expect:\n" + entries), "`matrix`: 10000 cells"));
  const std::string aliases = repeated(1000, [](int) { return std::string(", *a"); });
  EXPECT_TRUE(contains(refusal("version: 1\nx-a: &a " + page + "\nx-b: [1" + aliases + "]\n"),
                       "bytes of text once its aliases"));
  const std::string excluded = repeated(2000, [](int i) { return "  - {seq: " + number(i % 1000 + 1) + "}\n"; });
  EXPECT_TRUE(
      contains(refusal(kPlain + axes + "exclude:\n" + excluded), "`exclude` has 2000 entries, each for 10000 points"));
}

TEST(ScenarioReader, ThousandsOfMistakes_AreReportedUpToAHundred) {
  const std::string text = kPlain + repeated(20000, [](int i) { return "nonsense" + number(i) + ": 1\n"; });
  try {
    parse_scenario(text, "f.yaml", bundled_vocabulary());
    FAIL() << "no key of these is known";
  } catch (const ScenarioError& error) {
    ASSERT_EQ(error.others().size(), 100u);
    EXPECT_EQ(error.others().back().problem(), "there may be more mistakes: 100 are reported at most");
  }
}

}  // namespace
}  // namespace fp8lab
