#pragma once

#include <string>
#include <utility>

#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// Rotates Q and K of a packed projection by their positions and copies V. Saves nothing: backward rotates back.
class Rotary final : public Module {
 public:
  Rotary(std::string name, const LayerConfig& config) : name_(std::move(name)), config_(config) {}
  Variable forward(Runtime& runtime, const Variable& qkv) override;

 private:
  std::string name_;
  LayerConfig config_;
};

}  // namespace fp8lab
