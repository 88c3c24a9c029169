#include <fmt/core.h>

#include <array>

#include "core/check.h"
#include "core/row_by_name.h"
#include "recipe/rows.h"

namespace fp8lab {
namespace {

template <class... Own>
constexpr auto quantizing_and(Own... own) {
  return std::array<std::string_view, 7 + sizeof...(own)>{"training.first_layers_bf16",
                                                          "training.last_layers_bf16",
                                                          "training.quantized_weights",
                                                          "training.masters_from",
                                                          "training.fused_quantize",
                                                          "training.cache_weights",
                                                          "training.recipe_options.fp8_format",
                                                          own...};
}

constexpr auto kDelayedKeys = quantizing_and(
    "training.fp8_sums", "training.fp8_attention", "training.fp8_attention_backward", "training.fp8_mha",
    "training.fp8_dispatch", "training.initial_history_length", "training.recipe_options.amax_history_length",
    "training.recipe_options.amax_algorithm", "training.recipe_options.margin");
constexpr auto kCurrentKeys = quantizing_and(
    "training.fp8_sums", "training.fp8_attention", "training.fp8_attention_backward", "training.fp8_dispatch",
    "training.recipe_options.epsilon", "training.recipe_options.power_of_two_scales");
constexpr auto kBlockKeys =
    quantizing_and("training.fp8_sums", "training.fp8_dispatch", "training.recipe_options.epsilon",
                   "training.recipe_options.power_of_two_scales");
constexpr auto kMxfp8Keys = quantizing_and("training.fp8_dispatch", "training.recipe_options.scale_rounding");

constexpr std::array kRecipes = {
    RecipeRow{"bf16", "no quantization: the baseline every other recipe is compared with", make_bf16, {}},
    RecipeRow{"delayed", "per-tensor FP8, scale from the amax history of earlier steps (DelayedScaling)", make_delayed,
              kDelayedKeys},
    RecipeRow{"current", "per-tensor FP8, scale from the tensor's own amax (Float8CurrentScaling)", make_current,
              kCurrentKeys},
    RecipeRow{"block", "E4M3 in 1x128 blocks (weights 128x128), FP32 scales (Float8BlockScaling)", make_block,
              kBlockKeys},
    RecipeRow{"mxfp8", "E4M3 in 1x32 blocks, E8M0 scales (MXFP8BlockScaling)", make_mxfp8, kMxfp8Keys},
};

[[noreturn]] void refuse_option(const Recipe& recipe, std::string_view option, std::string_view needs) {
  fail(fmt::format("recipe '{}': option '{}' has no effect here; it needs {}", recipe.name, option, needs));
}

// Applies an option to every format that has the property which the option sets. False if no format has it.
template <class Applies, class Apply>
bool apply_to_formats(Recipe& recipe, Applies applies, Apply apply) {
  bool any = false;
  const auto visit = [&](QuantFormat& format) {
    if (!applies(format)) return;
    apply(format);
    any = true;
  };
  for (QuantFormat* format : {&recipe.activation, &recipe.weight, &recipe.gradient}) visit(*format);
  if (recipe.attention) {
    AttentionFormats& attention = *recipe.attention;
    for (QuantFormat* format : {&attention.qkv, &attention.s, &attention.grad_o, &attention.grad_p}) visit(*format);
    if (attention.o) visit(*attention.o);
    if (attention.grad_qkv) visit(*attention.grad_qkv);
  }
  return any;
}

void apply_format_option(Recipe& recipe, const RecipeOptions& options) {
  if (!options.fp8_format) return;
  const bool hybrid = *options.fp8_format == "hybrid";
  if (!hybrid && *options.fp8_format != "e4m3")
    fail(fmt::format("fp8_format: '{}' is none of hybrid, e4m3", *options.fp8_format));
  if (!recipe.quantized) refuse_option(recipe, "fp8_format", "eight bits");
  const DType dtype = hybrid ? DType::kE5M2 : DType::kE4M3;
  recipe.gradient.dtype = dtype;
  if (!recipe.attention) return;
  recipe.attention->grad_o.dtype = recipe.attention->grad_p.dtype = dtype;
  if (recipe.attention->grad_qkv) recipe.attention->grad_qkv->dtype = dtype;
}

void apply_delayed_options(Recipe& recipe, const RecipeOptions& options) {
  const bool has_history = recipe.quantized && recipe.activation.amax_source == AmaxSource::kHistory;
  DelayedScaling& delayed = recipe.delayed;
  if (options.amax_history_length) {
    if (!has_history) refuse_option(recipe, "amax_history_length", "delayed scaling");
    if (*options.amax_history_length < 1)
      fail(fmt::format("amax_history_length: {} given, at least 1 needed", *options.amax_history_length));
    delayed.history_length = *options.amax_history_length;
  }
  if (options.amax_algorithm) {
    if (!has_history) refuse_option(recipe, "amax_algorithm", "delayed scaling");
    if (*options.amax_algorithm == "max")
      delayed.algorithm = AmaxAlgorithm::kMax;
    else if (*options.amax_algorithm == "most_recent")
      delayed.algorithm = AmaxAlgorithm::kMostRecent;
    else
      fail(fmt::format("amax_algorithm: '{}' is none of max, most_recent", *options.amax_algorithm));
  }
  if (options.margin) {
    if (!has_history) refuse_option(recipe, "margin", "delayed scaling");
    if (*options.margin < 0 || *options.margin > 32) fail(fmt::format("margin: {} is outside 0..32", *options.margin));
    delayed.margin = static_cast<int>(*options.margin);
  }
  if (has_history && recipe.attention) recipe.attention->in_kernel = delayed;
}

void apply_scale_options(Recipe& recipe, const RecipeOptions& options) {
  if (options.epsilon) {
    const auto measured = [](const QuantFormat& format) {
      return format.amax_source != AmaxSource::kHistory && format.scale_dtype() == DType::kF32;
    };
    const auto epsilon = static_cast<float>(*options.epsilon);
    if (!(epsilon >= 0.0f)) fail(fmt::format("epsilon: {} given, at least 0 needed", *options.epsilon));
    if (!recipe.quantized || !apply_to_formats(recipe, measured, [&](QuantFormat& f) { f.epsilon = epsilon; }))
      refuse_option(recipe, "epsilon", "FP32 scales from a measured amax (current, block)");
  }
  if (options.power_of_two_scales) {
    const auto measured_f32 = [](const QuantFormat& format) {
      return format.amax_source != AmaxSource::kHistory && format.scale_dtype() == DType::kF32;
    };
    const ScaleKind kind = *options.power_of_two_scales ? ScaleKind::kF32PowerOfTwo : ScaleKind::kF32;
    if (!recipe.quantized || !apply_to_formats(recipe, measured_f32, [&](QuantFormat& f) { f.scale = kind; }))
      refuse_option(recipe, "power_of_two_scales", "FP32 scales from a measured amax (current, block)");
  }
  if (options.scale_rounding) {
    const bool floor = *options.scale_rounding == "floor";
    if (!floor && *options.scale_rounding != "rceil")
      fail(fmt::format("scale_rounding: '{}' is none of rceil, floor", *options.scale_rounding));
    const auto e8m0 = [](const QuantFormat& format) { return format.scale_dtype() == DType::kE8M0; };
    const ScaleKind kind = floor ? ScaleKind::kE8M0Floor : ScaleKind::kE8M0Rceil;
    if (!recipe.quantized || !apply_to_formats(recipe, e8m0, [&](QuantFormat& f) { f.scale = kind; }))
      refuse_option(recipe, "scale_rounding", "E8M0 scales (mxfp8)");
  }
}

}  // namespace

std::span<const RecipeRow> recipes() { return kRecipes; }

Recipe make_recipe(std::string_view name, const RecipeOptions& options) {
  const RecipeRow& row = row_by_name(kRecipes, "recipe", name);
  Recipe recipe = row.make();
  recipe.name = row.name;
  recipe.title = row.title;
  apply_format_option(recipe, options);
  apply_delayed_options(recipe, options);
  apply_scale_options(recipe, options);
  return recipe;
}

std::string broken_shape_rule(const Recipe& recipe, std::int64_t rows, std::int64_t cols) {
  if (rows % recipe.rows_multiple == 0 && cols % recipe.cols_multiple == 0) return {};
  return fmt::format("a {} x {} matrix breaks the rule of recipe '{}': {}", rows, cols, recipe.name, recipe.shape_rule);
}

}  // namespace fp8lab
