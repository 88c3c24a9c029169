#include "nn/layer_config.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "core/check.h"

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

const LayerForm& layer_form(std::string_view name) {
  std::string known;
  for (const LayerForm& form : kForms) {
    if (form.name == name) return form;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", form.name);
  }
  fail(fmt::format("form '{}' is not known; the forms are {}", name, known));
}

}  // namespace fp8lab
