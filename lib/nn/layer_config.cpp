#include "nn/layer_config.h"

#include <array>
#include <numeric>
#include <string>

#include "core/row_by_name.h"

namespace fp8lab {
namespace {

constexpr std::array kForms = {
    LayerForm{.name = "gpt",
              .title = "LayerNorm, GELU, biases",
              .norm = NormKind::kLayerNorm,
              .activation = ActivationKind::kGelu,
              .bias = true,
              .rope = false},
    LayerForm{.name = "llama",
              .title = "RMSNorm, SwiGLU, rotary embedding, no biases",
              .norm = NormKind::kRmsNorm,
              .activation = ActivationKind::kSwiglu,
              .bias = false,
              .rope = true},
    LayerForm{.name = "gemma",
              .title = "RMSNorm, GeGLU, rotary embedding, no biases, token embeddings times the root of hidden",
              .norm = NormKind::kRmsNorm,
              .activation = ActivationKind::kGeglu,
              .bias = false,
              .rope = true,
              .scales_embeddings = true},
};

}  // namespace

std::span<const LayerForm> form_table() { return kForms; }

std::vector<std::int64_t> LayerConfig::group_rows() const {
  constexpr std::int64_t kLargestBlock = 128;
  const std::int64_t unit = uneven_split ? std::gcd(tokens(), kLargestBlock) : 1, units = tokens() / unit;
  // Shares fall from `experts` to 1. Without the second one, whose group is empty, and in units rounded down.
  std::vector<std::int64_t> shares(static_cast<std::size_t>(experts), 1);
  if (uneven_split) {
    std::iota(shares.rbegin(), shares.rend(), std::int64_t{1});
    if (experts > 1) shares[1] = 0;
  }
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::vector<std::int64_t> rows;
  std::int64_t before = 0, begin = 0;
  for (const std::int64_t share : shares) {
    before += share;
    const std::int64_t end = units * before / all;
    rows.push_back(unit * (end - begin));
    begin = end;
  }
  return rows;
}

std::int64_t row_multiple(const Recipe& recipe, const Behaviors& behaviors) {
  constexpr std::int64_t kSixteenBytes = 8;  // rows of BF16; PyTorch's grouped products needed groups of 16 bytes
  if (!recipe.quantized) return behaviors.pad_only_eight_bits ? 1 : kSixteenBytes;
  return behaviors.pad_groups_to_blocks ? std::lcm(recipe.rows_multiple, recipe.cols_multiple) : 1;
}

const LayerForm& layer_form(std::string_view name) { return row_by_name(kForms, "form", name); }

}  // namespace fp8lab
