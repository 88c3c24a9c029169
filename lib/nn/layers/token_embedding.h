#pragma once

#include <memory>

#include "nn/build.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// The rows of a table [vocabulary, hidden] by token, times a factor in some forms, plus learned positions [seq,
/// hidden] if the model has them, then dropout. If ranks split sequences between them, each has the positions of all of
/// them. Both matrices have the build's type, under every recipe. Saves the tokens.
class TokenEmbedding final : public Module {
 public:
  TokenEmbedding(Build& build, std::int64_t vocabulary, bool learned_positions, const LayerConfig& config);

  /// `tokens.value` comes from make_tokens(), with token = position * batch + sequence.
  Variable forward(Runtime& runtime, const Variable& tokens) override;
  Parameter& table() { return *table_; }
  /// Takes the gradient from both matrices.
  void freeze();

 private:
  std::unique_ptr<Parameter> table_;
  std::unique_ptr<Parameter> positions_;  ///< null if the model has none
  std::int64_t batch_;
  float scale_;
  float dropout_;
};

}  // namespace fp8lab
