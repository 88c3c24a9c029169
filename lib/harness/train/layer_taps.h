#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/model.h"

namespace fp8lab {

/// What a layer read and made in a step, on the host, [tokens, hidden].
struct LayerValues {
  std::vector<float> input;
  std::vector<float> output;
  std::vector<float> gradient;  ///< gradient of the output
};

enum class LayerTensor : std::uint8_t { kInput, kOutput, kGradient };

/// Gets what a layer read and made at the moment at which it did; `layer` is its name.
using SawLayer = std::function<void(const std::string& layer, LayerTensor which, const std::vector<float>& values)>;

/// Puts a module around each layer of `model` that writes its values of every forward and backward into `layers`, an
/// entry for each, and calls `saw`, if it is not empty. Changes no bit. `layers` must outlive the model.
void tap_layers(Model& model, std::vector<LayerValues>& layers, const SawLayer& saw = {});

}  // namespace fp8lab
