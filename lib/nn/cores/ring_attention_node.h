#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "nn/cores/attention_core.h"

// Backward of attention over sequences that ranks split between them: a collective of Runtime::context_group.
namespace fp8lab {

/// In 16 bits. Saved: qkv, kv (of the next rank of the ring), o, and lse of both chunks.
class RingAttentionNode final : public Node {
 public:
  RingAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, AttentionCore& core,
                    const AttentionShape& shape);
  using Node::save;
  std::vector<Tensor> backward(Tensor grad) override;

 private:
  AttentionCore& core_;
  AttentionShape shape_;
};

/// In eight bits. Saved: q and kv (storage; kv of the next rank of the ring), lse of both chunks, s_scale, o.
class QuantizedRingAttentionNode final : public Node {
 public:
  QuantizedRingAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, AttentionCore& core,
                             const AttentionShape& shape);
  using Node::save;
  using Node::save_quantized;
  using Node::save_split;
  std::vector<Tensor> backward(Tensor grad) override;

 private:
  AttentionCore& core_;
  AttentionShape shape_;
};

}  // namespace fp8lab
