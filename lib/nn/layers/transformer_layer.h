#pragma once

#include <memory>
#include <string>

#include "nn/layer_config.h"
#include "nn/layers/multihead_attention.h"
#include "nn/module.h"

namespace fp8lab {

/// x + dropout(attention(norm(x))), then the same with the MLP. The MLP is one node either way: LayerNormMlp or a chain
/// of the op fuser.
class TransformerLayer final : public Module {
 public:
  TransformerLayer(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  Variable residual(Runtime& runtime, const std::string& name, const Variable& branch, const Variable& x) const;

  std::string name_;
  float dropout_;
  MultiheadAttention attention_;
  std::unique_ptr<Module> mlp_;
};

}  // namespace fp8lab
