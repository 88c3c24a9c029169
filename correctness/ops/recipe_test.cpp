#include "recipe/recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/dense.h"

// The table of recipes, the effect of options, and the options that recipes refuse.
namespace fp8lab {
namespace {

using support::error_of;

std::vector<QuantFormat> formats_of(const Recipe& recipe) {
  std::vector<QuantFormat> formats = {recipe.activation, recipe.weight, recipe.gradient};
  if (!recipe.attention) return formats;
  for (const QuantFormat& format :
       {recipe.attention->qkv, recipe.attention->s, recipe.attention->grad_o, recipe.attention->grad_p})
    formats.push_back(format);
  if (recipe.attention->o) formats.push_back(*recipe.attention->o);
  if (recipe.attention->grad_qkv) formats.push_back(*recipe.attention->grad_qkv);
  return formats;
}

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

TEST(Recipes, Bf16QuantizesNothing) {
  EXPECT_FALSE(make_recipe("bf16").quantized);
  EXPECT_FALSE(make_recipe("bf16").attention);
  for (const char* name : {"delayed", "current", "block", "mxfp8"}) EXPECT_TRUE(make_recipe(name).quantized) << name;
}

TEST(Recipes, PerTensorRecipesAreHybrid) {
  for (const char* name : {"delayed", "current"}) {
    const Recipe recipe = make_recipe(name);
    EXPECT_EQ(recipe.activation.dtype, DType::kE4M3) << name;
    EXPECT_EQ(recipe.weight.dtype, DType::kE4M3) << name;
    EXPECT_EQ(recipe.gradient.dtype, DType::kE5M2) << name;
    for (const QuantFormat& format : formats_of(recipe)) {
      EXPECT_TRUE(format.per_tensor()) << name;
      EXPECT_TRUE(format.columnwise_is_transpose()) << name;
      EXPECT_EQ(format.scale, ScaleKind::kF32) << name;
      EXPECT_EQ(format.epsilon, 0.0f) << name;
    }
  }
}

TEST(Recipes, DelayedScalesComeFromHistories) {
  const Recipe recipe = make_recipe("delayed");
  for (const QuantFormat& format : formats_of(recipe)) EXPECT_EQ(format.amax_source, AmaxSource::kHistory);
  EXPECT_EQ(recipe.delayed.history_length, 1024);
  EXPECT_EQ(recipe.delayed.algorithm, AmaxAlgorithm::kMax);
  EXPECT_EQ(recipe.delayed.margin, 0);
  ASSERT_TRUE(recipe.attention);
  EXPECT_EQ(recipe.attention->o->dtype, DType::kE4M3);
  EXPECT_EQ(recipe.attention->grad_o.dtype, DType::kE5M2);
  EXPECT_EQ(recipe.attention->grad_p.dtype, DType::kE5M2);
  EXPECT_EQ(recipe.attention->grad_qkv->dtype, DType::kE5M2);
}

TEST(Recipes, CurrentMeasuresTensorsAndKeepsOneStepInsideAttention) {
  const Recipe recipe = make_recipe("current");
  for (const QuantFormat& format :
       {recipe.activation, recipe.weight, recipe.gradient, recipe.attention->qkv, recipe.attention->grad_o})
    EXPECT_EQ(format.amax_source, AmaxSource::kTensor);
  EXPECT_EQ(recipe.attention->s.amax_source, AmaxSource::kHistory);
  EXPECT_EQ(recipe.attention->grad_p.amax_source, AmaxSource::kHistory);
  EXPECT_EQ(recipe.attention->in_kernel.history_length, 1);
  EXPECT_EQ(recipe.attention->in_kernel.algorithm, AmaxAlgorithm::kMostRecent);
  EXPECT_FALSE(recipe.attention->o);
  EXPECT_FALSE(recipe.attention->grad_qkv);
}

TEST(Recipes, BlockRecipesAreE4M3Everywhere) {
  const Recipe block = make_recipe("block"), mxfp8 = make_recipe("mxfp8");
  for (const Recipe& recipe : {block, mxfp8})
    for (const QuantFormat& format : formats_of(recipe)) {
      EXPECT_EQ(format.dtype, DType::kE4M3);
      EXPECT_EQ(format.amax_source, AmaxSource::kBlock);
    }
  EXPECT_EQ(block.activation.block_rows, 1);
  EXPECT_EQ(block.activation.block_cols, 128);
  EXPECT_EQ(block.gradient, block.activation);
  EXPECT_EQ(block.weight.block_rows, 128);
  EXPECT_EQ(block.weight.block_cols, 128);
  EXPECT_TRUE(block.weight.columnwise_is_transpose());
  EXPECT_FALSE(block.activation.columnwise_is_transpose());
  EXPECT_EQ(block.activation.scale, ScaleKind::kF32PowerOfTwo);
  EXPECT_EQ(block.activation.scale_dtype(), DType::kF32);
  EXPECT_EQ(mxfp8.activation.block_cols, 32);
  EXPECT_EQ(mxfp8.weight, mxfp8.activation);
  EXPECT_EQ(mxfp8.activation.scale, ScaleKind::kE8M0Rceil);
  EXPECT_EQ(mxfp8.activation.scale_dtype(), DType::kE8M0);
}

TEST(RecipeOptionsTest, Fp8FormatIsTheTypeOfEveryGradient) {
  for (const char* name : {"delayed", "current", "block", "mxfp8"})
    for (const bool hybrid : {true, false}) {
      RecipeOptions options;
      options.fp8_format = hybrid ? "hybrid" : "e4m3";
      const Recipe recipe = make_recipe(name, options);
      const DType gradient = hybrid ? DType::kE5M2 : DType::kE4M3;
      EXPECT_EQ(recipe.gradient.dtype, gradient) << name;
      EXPECT_EQ(recipe.activation.dtype, DType::kE4M3) << name;
      EXPECT_EQ(recipe.weight.dtype, DType::kE4M3) << name;
      if (!recipe.attention) continue;
      EXPECT_EQ(recipe.attention->grad_o.dtype, gradient) << name;
      EXPECT_EQ(recipe.attention->grad_p.dtype, gradient) << name;
      if (recipe.attention->grad_qkv) {
        EXPECT_EQ(recipe.attention->grad_qkv->dtype, gradient) << name;
      }
      EXPECT_EQ(recipe.attention->qkv.dtype, DType::kE4M3) << name;
      EXPECT_EQ(recipe.attention->s.dtype, DType::kE4M3) << name;
    }
}

TEST(RecipeOptionsTest, HistoryOptionsReachEveryHistory) {
  RecipeOptions options;
  options.amax_history_length = 16;
  options.amax_algorithm = "most_recent";
  options.margin = 2;
  const Recipe recipe = make_recipe("delayed", options);
  for (const DelayedScaling& delayed : {recipe.delayed, recipe.attention->in_kernel}) {
    EXPECT_EQ(delayed.history_length, 16);
    EXPECT_EQ(delayed.algorithm, AmaxAlgorithm::kMostRecent);
    EXPECT_EQ(delayed.margin, 2);
  }
}

TEST(RecipeOptionsTest, ScaleOptionsReachEveryMeasuredFormat) {
  RecipeOptions options;
  options.epsilon = 1e-4;
  options.power_of_two_scales = true;
  for (const QuantFormat& format : formats_of(make_recipe("current", options))) {
    const bool measured = format.amax_source == AmaxSource::kTensor;
    EXPECT_EQ(format.epsilon, measured ? 1e-4f : 0.0f);
    EXPECT_EQ(format.scale, measured ? ScaleKind::kF32PowerOfTwo : ScaleKind::kF32);
  }
  options.power_of_two_scales = false;
  for (const QuantFormat& format : formats_of(make_recipe("block", options))) {
    EXPECT_EQ(format.epsilon, 1e-4f);
    EXPECT_EQ(format.scale, ScaleKind::kF32);
  }
  RecipeOptions rounding;
  rounding.scale_rounding = "floor";
  for (const QuantFormat& format : formats_of(make_recipe("mxfp8", rounding)))
    EXPECT_EQ(format.scale, ScaleKind::kE8M0Floor);
  rounding.scale_rounding = "rceil";
  for (const QuantFormat& format : formats_of(make_recipe("mxfp8", rounding)))
    EXPECT_EQ(format.scale, ScaleKind::kE8M0Rceil);
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
