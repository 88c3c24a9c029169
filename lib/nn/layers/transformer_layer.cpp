#include "nn/layers/transformer_layer.h"

#include "autograd/functions.h"
#include "nn/layers/op_fuser.h"

namespace fp8lab {
TransformerLayer::TransformerLayer(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name),
      dropout_(config.dropout),
      attention_(build, name, config),
      mlp_(make_mlp(build, name + ".mlp", config)) {}

Variable TransformerLayer::residual(Runtime& runtime, const std::string& name, const Variable& branch,
                                    const Variable& x) const {
  const DropoutKey key{.probability = dropout_,
                       .seed = runtime.seed,
                       .stream = stream_of(name) + static_cast<std::uint64_t>(runtime.step),
                       .row_offset = runtime.row_offset};
  return add(runtime, name, dropout(runtime, name + ".dropout", branch, key), x);
}

Variable TransformerLayer::forward(Runtime& runtime, const Variable& x) {
  const Variable attended = residual(runtime, name_ + ".residual1", attention_.forward(runtime, x), x);
  return residual(runtime, name_ + ".residual2", mlp_->forward(runtime, attended), attended);
}

}  // namespace fp8lab
