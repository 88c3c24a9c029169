#pragma once

#include <memory>

#include "nn/build.h"
#include "nn/cores/norm_core.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// logits = norm(x) W^T with W [vocabulary, hidden], of its own or the embedding's. The product is in the build's type,
/// under every recipe. Saves x, the norm's statistics and its result. Backward takes the gradient of the logits over
/// and frees it as soon as both products have read it.
class LanguageHead final : public Module {
 public:
  /// `tied`: the embedding's table, or null.
  LanguageHead(Build& build, Parameter* tied, std::int64_t vocabulary, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  NormCore norm_;
  std::unique_ptr<Parameter> own_;
  Parameter& weight_;
};

}  // namespace fp8lab
