#pragma once

#include <vector>

#include "nn/model.h"

namespace fp8lab {

/// What a layer read and made in a step, on the host, [tokens, hidden].
struct LayerValues {
  std::vector<float> input;
  std::vector<float> output;
  std::vector<float> gradient;  ///< gradient of the output
};

/// Puts a module around each layer of `model` that writes its values of every forward and backward into `layers`, an
/// entry for each. Changes no bit. `layers` must outlive the model.
void tap_layers(Model& model, std::vector<LayerValues>& layers);

}  // namespace fp8lab
