#pragma once

#include <cstdint>
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

}  // namespace fp8lab
