#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"

// Recipes are data: operations read their properties and never ask which recipe it is. Rules and their sources are in
// the comments of each recipe's file.
namespace fp8lab {

/// The source of the amax behind a scale.
enum class AmaxSource {
  kHistory,  ///< from earlier steps of the same tensor (delayed scaling)
  kTensor,   ///< from the tensor itself, before the cast (current scaling)
  kBlock,    ///< from each block, in the same pass as the cast
};

/// How a scale is computed from the amax of its block or tensor.
enum class ScaleKind {
  kF32,            ///< fp8_max / amax
  kF32PowerOfTwo,  ///< fp8_max / amax with its fraction bits cleared (rounded down)
  kE8M0Rceil,      ///< smallest power of two not below amax / fp8_max: never clips
  kE8M0Floor,      ///< OCP MX 1.0 section 6.3: may clip the top of the binade
};

/// How tensors of one role are quantized. Blocks are `block_rows` x `block_cols` elements of the row-wise matrix; 0 x 0
/// is the entire tensor. The column-wise orientation is the same format applied to the transposed matrix, so a 1 x 32
/// block runs along the reduction axis in both orientations. columnwise_stored_transposed() gives its order in memory.
struct QuantFormat {
  DType dtype = DType::kE4M3;
  std::int64_t block_rows = 0;
  std::int64_t block_cols = 0;
  AmaxSource amax_source = AmaxSource::kTensor;
  ScaleKind scale = ScaleKind::kF32;
  float epsilon = 0.0f;  ///< lower bound of the amax

  bool per_tensor() const { return block_cols == 0; }
  DType scale_dtype() const {
    return scale == ScaleKind::kE8M0Rceil || scale == ScaleKind::kE8M0Floor ? DType::kE8M0 : DType::kF32;
  }
  /// True when the column-wise orientation holds the same data as the row-wise one, transposed (per tensor, square
  /// blocks).
  bool columnwise_is_transpose() const { return block_rows == block_cols; }
  /// False if the column-wise orientation is stored in the order of the matrix, with blocks that run down the
  /// columns. This is so for microscaling, whose matrix units read either order.
  bool columnwise_stored_transposed() const { return scale_dtype() != DType::kE8M0; }
  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

enum class AmaxAlgorithm { kMax, kMostRecent };

/// Options of formats whose amax_source is kHistory.
struct DelayedScaling {
  std::int64_t history_length = 1024;
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
  int margin = 0;  ///< scale = fp8_max * 2^-margin / amax
};

/// Formats of the eight-bit operands inside attention. An absent format means that the operand stays in 16 bits.
struct AttentionFormats {
  QuantFormat qkv;  ///< Q, K and V share one scale
  QuantFormat s;    ///< the softmax probabilities
  std::optional<QuantFormat> o;
  QuantFormat grad_o;
  QuantFormat grad_p;  ///< the gradient before softmax, an operand of dQ and dK
  std::optional<QuantFormat> grad_qkv;
  DelayedScaling in_kernel;  ///< history of the operands that live only inside the kernel (s, grad_p)
};

struct Recipe {
  std::string_view name;
  std::string_view title;
  bool quantized = true;  ///< false: everything stays in the parameters' type, and the fields below are unused
  QuantFormat activation;
  QuantFormat weight;
  QuantFormat gradient;
  DelayedScaling delayed;
  std::optional<AttentionFormats> attention;  ///< absent: attention stays in 16 bits
  /// A quantized matrix must have rows and columns divisible by these.
  std::int64_t rows_multiple = 1;
  std::int64_t cols_multiple = 1;
  std::string_view shape_rule;  ///< the rule of rows_multiple and cols_multiple in words, with its source
};

/// Overrides from a scenario. An absent value keeps the recipe's default.
struct RecipeOptions {
  std::optional<std::string> fp8_format;  ///< hybrid: gradients in E5M2, all else in E4M3; e4m3: all in E4M3
  std::optional<std::int64_t> amax_history_length;
  std::optional<std::string> amax_algorithm;  ///< max | most_recent
  std::optional<std::int64_t> margin;
  std::optional<double> epsilon;
  std::optional<bool> power_of_two_scales;
  std::optional<std::string> scale_rounding;  ///< rceil | floor (E8M0 scales)
};

struct RecipeRow {
  std::string_view name;
  std::string_view title;
  Recipe (*make)();
  /// Keys of a scenario that the recipe reads and other recipes do not. A test tries every key with every recipe.
  std::span<const std::string_view> keys;
};

/// The table of recipes. lib/extending.md lists what a new one needs.
std::span<const RecipeRow> recipes();

/// The recipe `name` with `options` applied. Throws Error for an unknown name (listing the known ones) or for an option
/// that has no effect on this recipe.
Recipe make_recipe(std::string_view name, const RecipeOptions& options = {});

/// Empty if a [rows, cols] matrix can be quantized under `recipe`, otherwise the rule that it breaks, in words.
std::string broken_shape_rule(const Recipe& recipe, std::int64_t rows, std::int64_t cols);

}  // namespace fp8lab
