#include "harness/scenario/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/cell/keys.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/sample.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

const Vocabulary kVocabulary = sample::vocabulary();

Scenario parse(const std::string& text) { return parse_scenario(text, "sample.yaml", kVocabulary); }

std::vector<PlannedCell> plan(const std::string& text) { return plan_cells(parse(text), kVocabulary); }

TEST(Scenario, ReadsEveryPart) {
  const Scenario s = parse(sample::kFixScenario + R"(
device: meta
matrix:
  recipe: [delayed, bf16]
  model.seq: [1048, 2048]
  keep_loss: [true, false]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted, when: {recipe: delayed, keep_loss: true}}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
  - {metric: memory.peak_bytes, arm: difference, at_least: 1e3, rel: 0.5, abs: 2}
  - {metric: memory.peak_bytes, arm: bf16, within: [-1, 2.5]}
  - {arm: before, status: crashed, signal: SIGSEGV, when: {model.seq: [2048]}}
claims:
  - {source: "TransformerEngine#1935", words: "1070 MiB", metric: memory.end_of_backward_bytes, arm: after, value: 1070, unit: MiB, note: all of it}
skip_if:
  - {when: {keep_loss: false, recipe: bf16}, reason: shows no difference}
timeout: 12.5
)");
  EXPECT_EQ(s.name, "sample");
  EXPECT_EQ(s.base.model.hidden, 2048);
  EXPECT_EQ(s.base.device, "meta");
  EXPECT_TRUE(s.base.training.fp8_attention);
  EXPECT_EQ(s.timeout_s, 12.5);
  ASSERT_EQ(s.expect.size(), 5u);
  EXPECT_TRUE(s.expect[0].predicted);
  EXPECT_EQ(text_of(s.expect[0]), "before memory.retained_bytes equals predicted");
  EXPECT_EQ(text_of(s.expect[2]), "difference memory.peak_bytes is at least 1000 (abs 2) (rel 0.5)");
  EXPECT_EQ(text_of(s.expect[3]), "bf16 memory.peak_bytes is within [-1, 2.5]");
  EXPECT_EQ(text_of(s.expect[4]), "before ends crashed by SIGSEGV");
  ASSERT_EQ(s.claims.size(), 1u);
  EXPECT_EQ(s.claims[0].unit, "MiB");

  const std::vector<PlannedCell> cells = plan_cells(s, kVocabulary);
  ASSERT_EQ(cells.size(), 8u);
  EXPECT_EQ(cells[0].config.id, "sample/recipe=delayed,model.seq=1048,keep_loss=true");
  EXPECT_EQ(cells[3].config.model.seq, 2048);
  EXPECT_FALSE(cells[3].config.training.keep_loss);
  const auto of_file = [](const PlannedCell& cell) {
    return std::ranges::count(cell.expect, false, &Expectation::of_group);
  };
  EXPECT_EQ(of_file(cells[0]), 4);  // without the expectation for seq 2048
  EXPECT_EQ(of_file(cells[5]), 3);
  EXPECT_EQ(cells[5].skip_reason, "shows no difference");
  EXPECT_FALSE(cells[5].skipped_here);
  EXPECT_EQ(cells[4].skip_reason, "");
}

TEST(Scenario, LimitMayBeAnotherArmsFigureOrAMultipleOfIt) {
  std::string text = sample::kFixScenario + R"(expect:
  - {metric: memory.peak_bytes, arm: after, at_most: bf16}
  - {metric: memory.peak_bytes, arm: after, at_most: 0.5 of before}
  - {metric: time.step_ms, arm: after, at_most: 1.05 of before}
  - {metric: memory.peak_bytes, arm: before, equals: after}
)";
  text.replace(text.find("[memory]"), 8, "[memory, time]");
  const Scenario s = parse(text);
  EXPECT_EQ(text_of(s.expect[0]), "after memory.peak_bytes is at most bf16's");
  EXPECT_EQ(text_of(s.expect[1]), "after memory.peak_bytes is at most 0.5 of before's");
  EXPECT_EQ(text_of(s.expect[2]), "after time.step_ms is at most 1.05 of before's");
  EXPECT_EQ(s.expect[3].of, Arm::kAfter);
  EXPECT_EQ(s.expect[3].factor, 1);
  text.replace(text.rfind("time.step_ms, arm: after, at_most"), 33, "time.step_ms, arm: after, equals");
  EXPECT_THROW(parse(text), ScenarioError) << "no two runs take the same time";
}

TEST(Scenario, LimitsAndTolerancesMayHaveUnits) {
  const Scenario s = parse(sample::kFixScenario + R"(expect:
  - {metric: memory.peak_bytes, arm: after, at_most: 6 GiB}
  - {metric: memory.peak_bytes, arm: after, equals: 1.5kB, abs: 1 KiB, rel: 5 %}
  - {metric: memory.peak_bytes, arm: after, within: [1 MB, 2 MB]}
)");
  EXPECT_EQ(s.expect[0].low, 6442450944.0);
  EXPECT_EQ(text_of(s.expect[0]), "after memory.peak_bytes is at most 6 GiB");
  EXPECT_EQ(s.expect[1].low, 1500.0);
  EXPECT_EQ(s.expect[1].abs, 1024.0);
  EXPECT_EQ(s.expect[1].rel, 0.05);
  EXPECT_EQ(s.expect[2].high, 2e6);
  EXPECT_EQ(text_of(s.expect[2]), "after memory.peak_bytes is within [1 MB, 2 MB]");
}

TEST(Scenario, CapacityIsASizeWithItsUnit) {
  const std::string plain = "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n";
  EXPECT_EQ(parse(plain + "capacity: 80GiB\n").base.capacity, std::int64_t{80} << 30);
  EXPECT_EQ(parse(plain + "capacity: 1.5 TB\n").base.capacity, 1500000000000);
  EXPECT_EQ(parse(plain + "capacity: 80000000000\n").base.capacity, 80000000000);
  const auto cells = plan(plain + R"(matrix: {capacity: [0, 80 GB, 24GiB]}
expect: [{metric: memory.peak_bytes, at_least: 1, when: {capacity: [80GB]}}]
)");
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[1].config.capacity, 80000000000);
  EXPECT_EQ(cells[1].config.id, "p/capacity=80000000000");
  EXPECT_EQ(cells[1].expect.front().metric, "memory.peak_bytes") << "80GB and 80 GB are one size";
  EXPECT_TRUE(cells[2].expect.front().of_group);
}

TEST(Scenario, MeasureImpliesGatesThatAnEntryReplaces) {
  const std::string plain = "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n";
  const auto texts = [](const PlannedCell& cell) {
    std::vector<std::string> out;
    for (const Expectation& e : cell.expect) out.push_back(text_of(e));
    return out;
  };
  EXPECT_EQ(texts(plan(plain).front()), (std::vector<std::string>{"after memory.unexplained_bytes equals 0",
                                                                  "after memory.unbalanced_bytes equals 0",
                                                                  "after memory.retained_bytes equals 0"}));
  EXPECT_EQ(plan(plain).front().expect.front().line, 5) << "the line of `measure`";
  EXPECT_EQ(
      texts(plan(plain + "expect: [{metric: memory.unexplained_bytes, at_most: 512}]\n").front()),
      (std::vector<std::string>{"after memory.unexplained_bytes is at most 512",
                                "after memory.unbalanced_bytes equals 0", "after memory.retained_bytes equals 0"}));
}

TEST(Scenario, ParityImpliesGatesOfArmsThatHaveTheFigures) {
  Vocabulary vocabulary = sample::vocabulary();
  vocabulary.computes_values = [](std::string_view device) { return device != "meta"; };
  vocabulary.quantizes = [](std::string_view) { return true; };
  vocabulary.why_absent = [](const CellConfig& cell, Arm, std::string_view metric) {
    return metric == "parity.twin_faults" && cell.ranks == 1 ? "the cell itself is plain" : "";
  };
  vocabulary.floor = [](const CellConfig&, Arm arm, std::string_view metric) {
    return arm == Arm::kAfter && metric == "parity.same_weights_grad_sqnr_db" ? std::optional(3.0) : std::nullopt;
  };
  const auto texts = [&](const std::string& more) {
    const std::string text = "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [parity]\n" + more;
    std::vector<std::string> out;
    const std::vector<PlannedCell> cells = plan_cells(parse_scenario(text, "p.yaml", vocabulary), vocabulary);
    for (const Expectation& e : cells.front().expect) out.push_back(text_of(e));
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts("ranks: 1\n"), (Texts{"after parity.same_weights_grad_sqnr_db is at least 3"}));
  EXPECT_EQ(texts("ranks: 2\n"),
            (Texts{"after parity.twin_faults equals 0", "after parity.ranks_equal equals 1",
                   "after parity.gathered_equals_unsharded equals 1",
                   "after parity.same_weights_grad_sqnr_db is at least 3", "bf16 parity.twin_faults equals 0",
                   "bf16 parity.ranks_equal equals 1", "bf16 parity.gathered_equals_unsharded equals 1"}));
  EXPECT_EQ(texts("ranks: 1\nexpect: [{metric: parity.same_weights_grad_sqnr_db, at_least: 9}]\n"),
            (Texts{"after parity.same_weights_grad_sqnr_db is at least 9"}));
}

TEST(Scenario, ParityImpliesThatEveryWeightMovesIfStepsAreLargeEnough) {
  Vocabulary vocabulary = sample::vocabulary();
  vocabulary.computes_values = [](std::string_view device) { return device != "meta"; };
  vocabulary.quantizes = [](std::string_view) { return false; };
  vocabulary.why_absent = [](const CellConfig&, Arm, std::string_view) { return ""; };
  const auto implies = [&](const std::string& training, const std::string& more = "") {
    const std::string text =
        "version: 1\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [parity]\ntraining: {" + training + "}\n" + more;
    const std::vector<PlannedCell> cells = plan_cells(parse_scenario(text, "p.yaml", vocabulary), vocabulary);
    return std::ranges::any_of(cells.front().expect, [](const Expectation& e) {
      return e.metric == "parity.weights_moved" && e.comparison == Comparison::kEquals && e.low == 1;
    });
  };
  EXPECT_TRUE(implies("steps: 2, optimizer: adam, learning_rate: 0.001, master_weights: f32"));
  EXPECT_FALSE(implies("steps: 1, optimizer: adam, learning_rate: 0.001, master_weights: f32"));
  EXPECT_TRUE(implies("steps: 10, optimizer: adam, learning_rate: 0.0002, master_weights: f32"));
  EXPECT_FALSE(implies("steps: 90, optimizer: adam, learning_rate: 0.0001, master_weights: f32")) << "and back again";
  EXPECT_FALSE(implies("steps: 9, optimizer: adam, learning_rate: 0.001")) << "BF16 rounds each step back";
  EXPECT_TRUE(implies("steps: 9, optimizer: adam, learning_rate: 0.001, param_dtype: f32"));
  EXPECT_TRUE(implies("steps: 1, optimizer: foreach_adam, learning_rate: 0.01"));
  EXPECT_FALSE(implies("steps: 9, optimizer: sgd, learning_rate: 0.01"));
  EXPECT_FALSE(implies("steps: 1, optimizer: adam, learning_rate: 0.01", "matrix: {device: [meta, cpu]}\n"));
}

TEST(Scenario, WithoutANameIsCalledAsItsFile) {
  const std::string text = "version: 1\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n";
  EXPECT_EQ(parse_scenario(text, "folder/my-file.yaml", kVocabulary).name, "my-file");
  EXPECT_EQ(parse_scenario(text + "name: other\n", "folder/my-file.yaml", kVocabulary).name, "other");
  EXPECT_EQ(parse_scenarios(text + "variants: {small: {title: S}}\n", "a.yaml", kVocabulary).at(1).name, "a-small");
  const std::string error = support::error_of([&] { parse_scenario(text, "My File.yaml", kVocabulary); });
  EXPECT_NE(error.find("`name` becomes part of ids"), std::string::npos) << error;
}

TEST(Scenario, OtherwiseGatesTheCellsWithoutAnEntryOfTheMetricAndArm) {
  const std::vector<PlannedCell> cells = plan(sample::kFixScenario + R"(
matrix: {recipe: [delayed, mxfp8, bf16]}
expect:
  - {metric: memory.peak_bytes, arm: difference, equals: 5, when: {recipe: delayed}, otherwise: 1 KiB}
  - {metric: memory.peak_bytes, arm: difference, at_least: 1, when: {recipe: mxfp8}}
  - {metric: memory.peak_bytes, arm: after, at_least: 0}
)");
  ASSERT_EQ(cells.size(), 3u);
  const auto differences = [](const PlannedCell& cell) {
    std::vector<std::string> out;
    for (const Expectation& e : cell.expect)
      if (e.side == Side::kDifference) out.push_back(text_of(e));
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(differences(cells[0]), (Texts{"difference memory.peak_bytes equals 5"}));
  EXPECT_EQ(differences(cells[1]), (Texts{"difference memory.peak_bytes is at least 1"}));
  EXPECT_EQ(differences(cells[2]), (Texts{"difference memory.peak_bytes equals 1 KiB"}));
}

TEST(Scenario, OtherwiseGatesNoCellWithoutTheArmOrWhoseArmEnds) {
  const std::vector<PlannedCell> cells = plan(sample::kFixScenario + R"(
matrix: {recipe: [delayed, mxfp8, bf16]}
expect:
  - {metric: memory.peak_bytes, arm: difference, equals: 5, when: {recipe: delayed}, otherwise: 0}
  - {arm: before, status: error, when: {recipe: mxfp8}}
)");
  const auto has_difference = [](const PlannedCell& cell) {
    return std::ranges::any_of(cell.expect, [](const Expectation& e) { return e.side == Side::kDifference; });
  };
  EXPECT_TRUE(has_difference(cells[0]));
  EXPECT_FALSE(has_difference(cells[1]));
  EXPECT_TRUE(has_difference(cells[2]));
}

TEST(Scenario, AnExpectationListsArms) {
  const std::string plain = "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n";
  const auto with_arms = [&](const std::string& arms) {
    return plain + "expect: [{metric: memory.peak_bytes, arm: " + arms + ", at_least: 1}]\n";
  };
  const auto refusal = [&](const std::string& arms) { return support::error_of([&] { parse(with_arms(arms)); }); };
  const Scenario both = parse(with_arms("[after, bf16]"));
  ASSERT_EQ(both.expect.size(), 2u);
  EXPECT_EQ(text_of(both.expect[0]), "after memory.peak_bytes is at least 1");
  EXPECT_EQ(text_of(both.expect[1]), "bf16 memory.peak_bytes is at least 1");
  EXPECT_NE(refusal("[after, after]").find("sample.yaml:6:51: `expect.arm` lists after twice"), std::string::npos)
      << refusal("[after, after]");
  EXPECT_NE(refusal("[after, bf61]").find("`expect.arm`: `bf61` is not known"), std::string::npos);
  EXPECT_NE(refusal("[]").find("`expect.arm` is an empty list"), std::string::npos);
  EXPECT_NE(refusal("[before, after]").find("`before` needs `fix`"), std::string::npos);
}

TEST(Scenario, UpstreamIsThatOfTheFixUnlessTheFileGivesIt) {
  std::string text = sample::kFixScenario + sample::kFixExpectation;
  EXPECT_EQ(plan(text).at(0).upstream, std::vector<std::string>{"TransformerEngine#1935"});
  text.replace(text.find("[TransformerEngine#1935]"), 24, "[mine]");
  EXPECT_EQ(plan(text).at(0).upstream, std::vector<std::string>{"mine"});
  text.erase(text.find("upstream:"), 17);
  EXPECT_EQ(plan(text).at(0).upstream, std::vector<std::string>{"TransformerEngine#1935"});
}

TEST(Scenario, UnavailableDeviceSkipsItsCellsWithItsReason) {
  const auto cells = plan(sample::kFixScenario + sample::kFixExpectation + "matrix: {device: [cpu, cuda]}\n");
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].skip_reason, "");
  EXPECT_EQ(cells[1].skip_reason, "no CUDA device was found");
  EXPECT_TRUE(cells[1].skipped_here);
}

TEST(Scenario, AxisOverridesTheKeyOfItsName) {
  const auto cells =
      plan(sample::kFixScenario + sample::kFixExpectation +
           "matrix: {hidden: [64], training.recipe: [bf16], margin: [3], fix: [release_fuser_tensors]}\n");
  ASSERT_EQ(cells.size(), 1u);
  EXPECT_EQ(cells[0].config.model.hidden, 64);
  EXPECT_EQ(cells[0].config.training.recipe, "bf16");
  EXPECT_EQ(cells[0].config.training.recipe_options.margin, 3);
  EXPECT_EQ(cells[0].config.fix, "release_fuser_tensors");
}

TEST(Scenario, IncludeAndExcludeMayStandInsideTheMatrix) {
  const auto cells = plan(sample::kFixScenario + sample::kFixExpectation + R"(
matrix:
  recipe: [delayed, bf16]
  device: [cpu, meta]
  exclude: [{recipe: bf16, device: cpu}]
  include: [{training.recipe: delayed, checkpoint: full}, {recipe: mxfp8, device: meta, arch: blackwell}]
)");
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_EQ(cells[0].config.id, "sample/recipe=delayed,device=cpu,checkpoint=full");
  EXPECT_EQ(cells[2].config.id, "sample/recipe=bf16,device=meta");
  EXPECT_EQ(cells[3].config.id, "sample/recipe=mxfp8,device=meta,arch=blackwell");
}

TEST(Scenario, AnchorsAndMergeKeysWork) {
  const Scenario s = parse(R"(version: 1
name: merged
title: Merged
x-small: &small {hidden: 64, heads: 4, seq: 16}
x-wide: &wide {hidden: 128, ffn: 512}
model:
  <<: [*small, *wide]
  heads: 2
training: {recipe: delayed}
measure: &groups [memory]
)");
  EXPECT_EQ(s.base.model.hidden, 64);  // the first merge wins over the second
  EXPECT_EQ(s.base.model.heads, 2);    // the mapping's own key wins over both
  EXPECT_EQ(s.base.model.ffn, 512);
}

TEST(Scenario, ScenarioWithoutAFixNeedsNoArm) {
  const Scenario s = parse(
      "version: 1\nname: p\ntitle: P\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n"
      "expect: [{metric: memory.peak_bytes, at_least: 1}]\n");
  EXPECT_EQ(s.expect.at(0).side, Side::kAfter);
}

TEST(Scenario, FilesAndFoldersAreRelativeToTheScenariosFolder) {
  const std::string text =
      "version: 1\nname: s\ntitle: S\nsubject: torch\nmodel: {hidden: 64, seq: 8, vocabulary: 9}\n"
      "training: {loss: cross_entropy, data: text, corpus: texts/a}\nmeasure: [memory]\n";
  const auto cell = [&](const std::string& file, const std::string& before, const std::string& after) {
    return plan_cells(
               parse_scenario(text + "versions: {before: " + before + ", after: " + after + "}\n", file, kVocabulary),
               kVocabulary)
        .at(0)
        .config;
  };
  const CellConfig below = cell("folder/s.yaml", "./te", "../te");
  EXPECT_EQ(below.training.corpus, "folder/texts/a");
  EXPECT_EQ(below.versions.before, "folder/te");
  EXPECT_EQ(below.versions.after, "./te");
  const CellConfig others = cell("/a/b/s.yaml", "2.14.1", "/c/te");
  EXPECT_EQ(others.versions.before, "2.14.1");
  EXPECT_EQ(others.versions.after, "/c/te");
  EXPECT_EQ(cell("/a/b/s.yaml", "2.14.1", "../te").versions.after, "/a/te");
  EXPECT_EQ(cell("s.yaml", "2.14.1", "./te").versions.after, "./te");
}

TEST(Scenario, LastPartsOfKeysAreUnique) {
  for (const Key& key : keys()) EXPECT_EQ(find_key(key.last()), &key) << key.path;
}

TEST(Scenario, EveryKeyReadsBackTheValueSet) {
  for (const Key& key : keys()) {
    CellConfig cell;
    Value value;
    switch (key.type) {
      case KeyType::kSwitch: value = !std::get_if<bool>(&value); break;
      case KeyType::kInteger: value = key.is_size ? kSmallestSize : static_cast<std::int64_t>(key.low) + 1; break;
      case KeyType::kNumber: value = 0.25; break;
      case KeyType::kWord: value = key.words(kVocabulary).back(); break;
      case KeyType::kMesh: value = std::string("2x4"); break;
      case KeyType::kText: value = std::string("2.14"); break;
      case KeyType::kFile: value = std::string("prose.txt"); break;
    }
    key.set(cell, value);
    EXPECT_EQ(key.get(cell), value) << key.path;
    EXPECT_TRUE(value_of(key, to_text(value), kVocabulary)) << key.path << " = " << to_text(value);
    EXPECT_EQ(value_of(key, to_text(value), kVocabulary), value) << key.path;
  }
}

}  // namespace
}  // namespace fp8lab
