#include "nn/cores/rotary.h"

#include <utility>

#include "autograd/sequence_split.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

// Queries and keys are adjacent and rotate alike, so they are handled as one run of heads.
Tensor rotate(Runtime& runtime, const LayerConfig& config, const Tensor& packed, bool inverse,
              const std::string& name) {
  const std::int64_t rotated_heads = config.heads + config.kv_heads;
  const std::int64_t columns = rotated_heads * config.head_dim(), rest = config.kv_heads * config.head_dim();
  Tensor rotated = runtime.device.allocate(packed.spec(), runtime.in_flight(name));
  const Tensor from = packed.columns(0, columns), to = rotated.columns(0, columns);
  const SequenceSplit split(runtime.context_group, config.seq);
  for (const SequenceChunk& chunk : split.chunks()) {
    const std::int64_t begin = chunk.begin * config.batch, rows = chunk.length * config.batch;
    rope_into(runtime.device,
              {.x = from.row_range(begin, rows),
               .batch = config.batch,
               .heads = rotated_heads,
               .inverse = inverse,
               .first_position = chunk.position},
              to.row_range(begin, rows));
  }
  copy_into(runtime.device, packed.columns(columns, rest), rotated.columns(columns, rest));
  return rotated;
}

class RotaryNode final : public Node {
 public:
  RotaryNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, const LayerConfig& config)
      : Node(runtime, std::move(name), {std::move(input)}), config_(config) {}
  std::vector<Tensor> backward(Tensor grad) override { return {rotate(runtime(), config_, grad, true, name())}; }

 private:
  LayerConfig config_;
};

}  // namespace

Variable Rotary::forward(Runtime& runtime, const Variable& qkv) {
  return {rotate(runtime, config_, qkv.value, false, name_),
          std::make_shared<RotaryNode>(runtime, name_, qkv.producer, config_)};
}

}  // namespace fp8lab
