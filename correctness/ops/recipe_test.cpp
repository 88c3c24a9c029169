#include "recipe/recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/dense.h"

// The table of recipes, and the options and shapes that they refuse. What they cast is the reference step's.
namespace fp8lab {
namespace {

using support::error_of;

void expect_refusal(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "'" << message << "' lacks '" << word << "'";
}

TEST(Recipes, TableListsEveryRecipe) {
  std::vector<std::string> names;
  for (const RecipeRow& row : recipes()) {
    names.emplace_back(row.name);
    const Recipe recipe = make_recipe(row.name);
    EXPECT_EQ(recipe.name, row.name);
    EXPECT_EQ(recipe.title, row.title);
    EXPECT_FALSE(recipe.title.empty());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"bf16", "delayed", "current", "block", "mxfp8"}));
}

TEST(RecipeOptionsTest, AreRefusedWhereTheyHaveNoEffect) {
  const auto refused = [](const char* recipe, const auto& set) {
    RecipeOptions options;
    set(options);
    return error_of([&] { make_recipe(recipe, options); });
  };
  const auto length = [](RecipeOptions& options) { options.amax_history_length = 16; };
  const auto algorithm = [](RecipeOptions& options) { options.amax_algorithm = "max"; };
  const auto margin = [](RecipeOptions& options) { options.margin = 1; };
  for (const char* recipe : {"bf16", "current", "block", "mxfp8"}) {
    expect_refusal(refused(recipe, length), {recipe, "amax_history_length", "delayed"});
    expect_refusal(refused(recipe, algorithm), {recipe, "amax_algorithm", "delayed"});
    expect_refusal(refused(recipe, margin), {recipe, "margin", "delayed"});
  }
  const auto epsilon = [](RecipeOptions& options) { options.epsilon = 1e-3; };
  const auto power_of_two = [](RecipeOptions& options) { options.power_of_two_scales = true; };
  for (const char* recipe : {"bf16", "delayed", "mxfp8"}) {
    expect_refusal(refused(recipe, epsilon), {recipe, "epsilon", "measured amax"});
    expect_refusal(refused(recipe, power_of_two), {recipe, "power_of_two_scales", "measured amax"});
  }
  expect_refusal(refused("bf16", [](RecipeOptions& options) { options.fp8_format = "e4m3"; }),
                 {"bf16", "fp8_format", "eight bits"});
  const auto rounding = [](RecipeOptions& options) { options.scale_rounding = "floor"; };
  for (const char* recipe : {"bf16", "delayed", "current", "block"})
    expect_refusal(refused(recipe, rounding), {recipe, "scale_rounding", "E8M0"});
}

TEST(RecipeOptionsTest, WithInvalidValuesAreRefused) {
  const auto refused = [](const char* recipe, const auto& set) {
    RecipeOptions options;
    set(options);
    return error_of([&] { make_recipe(recipe, options); });
  };
  expect_refusal(refused("delayed", [](RecipeOptions& o) { o.amax_history_length = 0; }),
                 {"amax_history_length", "0", "at least 1"});
  expect_refusal(refused("delayed", [](RecipeOptions& o) { o.fp8_format = "e5m2"; }), {"e5m2", "hybrid, e4m3"});
  expect_refusal(refused("delayed", [](RecipeOptions& o) { o.amax_algorithm = "mean"; }), {"mean", "max, most_recent"});
  expect_refusal(refused("delayed", [](RecipeOptions& o) { o.margin = -1; }), {"margin", "-1"});
  expect_refusal(refused("delayed", [](RecipeOptions& o) { o.margin = 33; }), {"margin", "33"});
  expect_refusal(refused("current", [](RecipeOptions& o) { o.epsilon = -1.0; }), {"epsilon", "-1"});
  expect_refusal(refused("current", [](RecipeOptions& o) { o.epsilon = std::nan(""); }), {"epsilon", "nan"});
  expect_refusal(refused("mxfp8", [](RecipeOptions& o) { o.scale_rounding = "nearest"; }), {"nearest", "rceil, floor"});
  expect_refusal(error_of([] { make_recipe("fp4"); }), {"fp4", "bf16, delayed, current, block, mxfp8"});
}

TEST(RecipeShapes, ShapeRulesHoldForRowsAndColumns) {
  struct Row {
    const char* recipe;
    std::int64_t rows, cols;
    const char* rule;
  };
  constexpr Row kRows[] = {{"delayed", 8, 16, ""},
                           {"delayed", 12, 16, "rows divisible by 8"},
                           {"delayed", 8, 24, "columns by 16"},
                           {"current", 16, 32, ""},
                           {"current", 4, 16, "rows divisible by 8"},
                           {"block", 128, 256, ""},
                           {"block", 64, 128, "128"},
                           {"block", 128, 192, "128"},
                           {"mxfp8", 32, 64, ""},
                           {"mxfp8", 48, 64, "32"},
                           {"mxfp8", 32, 48, "32"},
                           {"bf16", 1, 1, ""},
                           {"mxfp8", 0, 32, ""}};
  for (const Row& row : kRows) {
    const std::string broken = broken_shape_rule(make_recipe(row.recipe), row.rows, row.cols);
    EXPECT_EQ(broken.empty(), std::string(row.rule).empty())
        << row.recipe << " " << row.rows << " x " << row.cols << ": " << broken;
    if (!broken.empty()) {
      expect_refusal(broken, {row.recipe, row.rule, std::to_string(row.rows) + " x " + std::to_string(row.cols)});
    }
  }
}

}  // namespace
}  // namespace fp8lab
