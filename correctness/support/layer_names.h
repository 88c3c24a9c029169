#pragma once

#include <vector>

#include "nn/layer_table.h"

// The layers of the table as test parameters, so that a new layer is tested wherever all layers are.
namespace fp8lab::support {

inline std::vector<const char*> layer_names() {
  std::vector<const char*> names;
  for (const LayerRow& row : layer_table()) names.push_back(row.name.data());
  return names;
}

}  // namespace fp8lab::support
