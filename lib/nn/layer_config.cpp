#include "nn/layer_config.h"

#include <array>
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
};

}  // namespace

std::span<const LayerForm> form_table() { return kForms; }

const LayerForm& layer_form(std::string_view name) { return row_by_name(kForms, "form", name); }

}  // namespace fp8lab
