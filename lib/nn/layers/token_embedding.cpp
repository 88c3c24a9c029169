#include "nn/layers/token_embedding.h"

#include <cmath>
#include <utility>

#include "autograd/functions.h"
#include "autograd/sequence_split.h"
#include "core/float16.h"
#include "ops/elementwise.h"
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

/// The same for a table of positions, of which this rank has the positions of its chunks.
void accumulate_positions(Runtime& runtime, const Tensor& grad_out, std::int64_t batch, Parameter& positions) {
  const SequenceSplit split(runtime.context_group, grad_out.rows() / batch);
  if (split.chunks().size() == 1)
    return accumulate_rows(runtime.device, {.grad_out = grad_out, .tokens = {}, .batch = batch}, positions);
  if (!positions.grad) {
    positions.grad = runtime.device.allocate(positions.spec, positions.grad_holder);
    fill(runtime.device, positions.grad, 0.0f);
  }
  for (const SequenceChunk& chunk : split.chunks())
    embedding_gradient_into(
        runtime.device,
        {.grad_out = grad_out.row_range(chunk.begin * batch, chunk.length * batch), .tokens = {}, .batch = batch},
        positions.grad.row_range(chunk.position, chunk.length), true);
}

class TokenEmbeddingNode final : public Node {
 public:
  TokenEmbeddingNode(Runtime& runtime, const Variable& tokens, std::int64_t batch, float scale, Parameter& table,
                     Parameter* positions)
      : Node(runtime, "embedding", {tokens.producer}),
        batch_(batch),
        scale_(scale),
        table_(table),
        positions_(positions) {}
  void save_tokens(const Tensor& tokens) { save("tokens", tokens); }

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    accumulate_rows(device(), {.grad_out = grad, .tokens = saved.tensor(0), .batch = batch_, .scale = scale_}, table_);
    if (positions_ != nullptr) accumulate_positions(runtime(), grad, batch_, *positions_);
    return {Tensor()};
  }

 private:
  std::int64_t batch_;
  float scale_;
  Parameter& table_;
  Parameter* positions_;
};

/// Tokens of a sequence on all ranks that split it.
std::int64_t positions_of(const Build& build, const LayerConfig& config) {
  const ProcessGroup* const ranks = build.runtime.context_group;
  return config.seq * (ranks != nullptr ? ranks->size() : 1);
}

/// As a program has it that keeps the factor in the type of what it multiplies.
float root_of(std::int64_t number, DType dtype) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(number)));
  return dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(root)) : root;
}

}  // namespace

TokenEmbedding::TokenEmbedding(Build& build, std::int64_t vocabulary, bool learned_positions, const LayerConfig& config)
    : table_(make_parameter(build, "embedding.weight", {vocabulary, config.hidden}, Init::kNormal)),
      positions_(learned_positions ? make_parameter(build, "positions.weight",
                                                    {positions_of(build, config), config.hidden}, Init::kNormal)
                                   : nullptr),
      batch_(config.batch),
      scale_(config.form.scales_embeddings ? root_of(config.hidden, table_->spec.dtype) : 1.0f),
      dropout_(config.dropout) {}

void TokenEmbedding::freeze() {
  table_->frozen = true;
  if (positions_) positions_->frozen = true;
}

Variable TokenEmbedding::forward(Runtime& runtime, const Variable& tokens) {
  const std::int64_t count = tokens.value.numel();
  const Tensor column = tokens.value.reshaped(Shape{count, 1});
  Tensor rows = runtime.device.allocate({Shape{count, table_->value.cols()}, table_->value.dtype()},
                                        runtime.in_flight("embedding"));
  const SequenceSplit split(runtime.context_group, count / batch_);
  for (const SequenceChunk& chunk : split.chunks()) {
    const std::int64_t begin = chunk.begin * batch_, chunk_rows = chunk.length * batch_;
    embedding_into(runtime.device,
                   {.tokens = column.row_range(begin, chunk_rows),
                    .table = table_->value,
                    .positions = positions_ ? positions_->value.row_range(chunk.position, chunk.length) : Tensor(),
                    .batch = batch_,
                    .scale = scale_},
                   rows.row_range(begin, chunk_rows));
  }
  const auto node = std::make_shared<TokenEmbeddingNode>(runtime, tokens, batch_, scale_, *table_, positions_.get());
  node->save_tokens(tokens.value);
  const DropoutKey key{.probability = dropout_,
                       .seed = runtime.seed,
                       .stream = stream_of("embedding.dropout") + static_cast<std::uint64_t>(runtime.step),
                       .row_offset = runtime.row_offset};
  return dropout(runtime, "embedding.dropout", {std::move(rows), node}, key);
}

}  // namespace fp8lab
