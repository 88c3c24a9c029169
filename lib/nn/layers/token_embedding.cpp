#include "nn/layers/token_embedding.h"

#include <utility>

#include "autograd/functions.h"
#include "ops/embedding.h"

namespace fp8lab {
namespace {

/// Adds the sums of the rows of `inputs` to the gradient of `table`. They go to a gradient that is there, such as a
/// tied head's, without a copy of their own.
void accumulate_rows(Device& device, const EmbeddingGradientInputs& inputs, Parameter& table) {
  const bool adds = static_cast<bool>(table.grad);
  if (!adds) table.grad = device.allocate(table.spec, table.grad_holder);
  embedding_gradient_into(device, inputs, table.grad, adds);
}

class TokenEmbeddingNode final : public Node {
 public:
  TokenEmbeddingNode(Runtime& runtime, const Variable& tokens, std::int64_t batch, Parameter& table,
                     Parameter* positions)
      : Node(runtime, "embedding", {tokens.producer}), batch_(batch), table_(table), positions_(positions) {}
  void save_tokens(const Tensor& tokens) { save("tokens", tokens); }

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    accumulate_rows(device(), {.grad_out = grad, .tokens = saved.tensor(0), .batch = batch_}, table_);
    if (positions_ != nullptr)
      accumulate_rows(device(), {.grad_out = grad, .tokens = {}, .batch = batch_}, *positions_);
    return {Tensor()};
  }

 private:
  std::int64_t batch_;
  Parameter& table_;
  Parameter* positions_;
};

}  // namespace

TokenEmbedding::TokenEmbedding(Build& build, std::int64_t vocabulary, bool learned_positions, const LayerConfig& config)
    : table_(make_parameter(build, "embedding.weight", {vocabulary, config.hidden}, Init::kNormal)),
      positions_(learned_positions
                     ? make_parameter(build, "positions.weight", {config.seq, config.hidden}, Init::kNormal)
                     : nullptr),
      batch_(config.batch),
      dropout_(config.dropout) {}

Variable TokenEmbedding::forward(Runtime& runtime, const Variable& tokens) {
  Tensor rows = embedding(runtime.device, {.tokens = tokens.value,
                                           .table = table_->value,
                                           .positions = positions_ ? positions_->value : Tensor(),
                                           .batch = batch_,
                                           .holder = runtime.in_flight("embedding")});
  const auto node = std::make_shared<TokenEmbeddingNode>(runtime, tokens, batch_, *table_, positions_.get());
  node->save_tokens(tokens.value);
  const DropoutKey key{.probability = dropout_,
                       .seed = runtime.seed,
                       .stream = stream_of("embedding.dropout") + static_cast<std::uint64_t>(runtime.step),
                       .row_offset = runtime.row_offset};
  return dropout(runtime, "embedding.dropout", {std::move(rows), node}, key);
}

}  // namespace fp8lab
