#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/build.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// A matrix that a layer quantizes, for validation before a run.
struct QuantizedMatrix {
  std::string_view what;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

struct LayerRow {
  std::string_view name;
  std::string_view title;
  std::unique_ptr<Module> (*make)(Build&, const std::string& name, const LayerConfig&);
  /// All weights and activations that a quantizing recipe casts, in both orientations.
  std::vector<QuantizedMatrix> (*quantized)(const LayerConfig&);
  int products;  ///< by weights, one after the other
  /// Keys of a scenario that the layer reads and other layers do not. A test tries every key with every layer.
  std::span<const std::string_view> keys;
};

/// The table of layers. To add one, add a file and a row. Every layer maps [tokens, hidden] to [tokens, hidden].
std::span<const LayerRow> layer_table();
/// The layer called `name`. Throws Error listing the known names if there is none.
const LayerRow& layer_row(std::string_view name);

/// Empty if `layer` can run under `recipe`, otherwise the matrix and the rule that it breaks, in words.
std::string broken_layer_rule(const LayerRow& layer, const LayerConfig& config, const Recipe& recipe);

}  // namespace fp8lab
