#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "nn/layer_config.h"

namespace fp8lab {

/// The sizes of a Llama-3 8B layer, for any form.
inline LayerConfig llama_8b(std::int64_t seq, std::string_view form = "llama") {
  LayerConfig config;
  config.form = layer_form(form);
  config.hidden = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.ffn = 14336;
  config.seq = seq;
  return config;
}

/// The label of a row: a name such as "llama_8b" does not show the sizes.
inline std::string shape_of(const LayerConfig& config) {
  return fmt::format("batch {}, seq {}, hidden {}, ffn {}, {} heads, {} kv heads", config.batch, config.seq,
                     config.hidden, config.ffn, config.heads, config.kv_heads);
}

}  // namespace fp8lab
