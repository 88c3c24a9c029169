#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/scenario/sample.h"
#include "harness/scenario/scenario.h"

// Key `variants`: further scenarios of a file.
namespace fp8lab {
namespace {

const Vocabulary kWords = sample::vocabulary();

const std::string kWithVariants = R"(version: 1
name: leak
title: Full
upstream: [a report]
device: meta
model: {layer: transformer_layer, layers: 3, hidden: 2048, heads: 16, ffn: 6144, seq: 1048, batch: 32}
training: {recipe: delayed}
measure: [memory]
expect: [{metric: memory.retained_bytes, equals: 0}]
claims: [{source: a report, words: much, metric: memory.peak_bytes, arm: after, value: 9, unit: GB}]
)";

std::vector<Scenario> variants_of(const std::string& more) {
  return parse_scenarios(kWithVariants + more, "f.yaml", kWords);
}

/// All messages of the file, one in each line.
std::string variant_errors(const std::string& text) {
  try {
    parse_scenarios(text, "f.yaml", kWords);
  } catch (const ScenarioError& error) {
    std::string out = error.what();
    for (const ScenarioError& other : error.others()) out += std::string("\n") + other.what();
    return out;
  }
  return "";
}

TEST(Variants, AreScenariosWithTheirKeysInPlaceOfTheFile) {
  const std::vector<Scenario> all = variants_of(R"(variants:
  small:
    title: Small
    device: cpu
    model: {layer: linear, layers: 1, hidden: 64, seq: 16}
  8b: {training: {recipe: bf16}}
)");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "leak");
  EXPECT_EQ(all[0].title, "Full");
  EXPECT_EQ(all[0].claims.size(), 1u);
  const Scenario& small = all[1];
  EXPECT_EQ(small.name, "leak-small");
  EXPECT_EQ(small.title, "Small");
  EXPECT_EQ(small.upstream, all[0].upstream);
  EXPECT_EQ(small.base.device, "cpu");
  EXPECT_EQ(small.base.model.layer, "linear");
  EXPECT_EQ(small.base.model.batch, 1) << "`model` is replaced entirely";
  EXPECT_EQ(small.base.training.recipe, "delayed");
  EXPECT_EQ(small.expect.size(), 1u);
  EXPECT_TRUE(small.claims.empty()) << "claims are about the sizes of the file";
  EXPECT_EQ(all[2].name, "leak-8b");
  EXPECT_EQ(all[2].base.training.recipe, "bf16");
  EXPECT_EQ(plan_cells(small, kWords).at(0).line, 12) << "the line at which the variant begins";
  EXPECT_EQ(plan_cells(all[0], kWords).at(0).line, 2);
}

TEST(Variants, MistakesAreNamedAtTheirPlace_AndOnlyOnce) {
  const auto has = [](const std::string& more, const std::string& message) {
    const std::string errors = variant_errors(kWithVariants + more);
    EXPECT_NE(errors.find(message), std::string::npos) << errors;
    return errors;
  };
  has("variants: {}\n", "f.yaml:11:1: `variants` is empty");
  has("variants: [small]\n", "f.yaml:11:1: `variants` must be a mapping");
  has("variants: {small: {}}\n", "f.yaml:11:12: `variants.small` is empty");
  has("variants: {small: 3}\n", "f.yaml:11:12: `variants.small` must be a mapping");
  has("variants: {small: {name: other}}\n", "`variants.small.name`: `name` belongs to the file");
  has("variants: {small: {variants: {x: {device: cpu}}}}\n",
      "`variants.small.variants`: `variants` belongs to the file");
  has("variants: {small: {skip_if: }}\n", "`variants.small.skip_if` has no value, and the file has no `skip_if`");
  has("variants: {small: {devise: cpu}}\n", "f.yaml:11:20: `devise`: no such key. Did you mean `device`?");
  has("variants: {Small: {device: cpu}}\n", "`name` becomes part of ids");
  has("variants: {small: {measure: }}\n", "`measure` is missing");
  // A mistake of the file's own keys is not repeated for each variant; the variant's own is found too.
  const std::string both =
      variant_errors(kWithVariants + "timeout: never\nvariants: {small: {device: cqu}, other: {device: cpu}}\n");
  EXPECT_EQ(std::ranges::count(both, '\n'), 1) << both;
  EXPECT_NE(both.find("`timeout` must be a number"), std::string::npos) << both;
  EXPECT_NE(both.find("`cqu` is not known"), std::string::npos) << both;
}

}  // namespace
}  // namespace fp8lab
