#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/node.h"
#include "nn/cores/attention_core.h"

namespace fp8lab {

/// Backward of attention in 16 bits. Saved: qkv, o, lse.
class AttentionNode final : public Node {
 public:
  AttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, AttentionCore& core,
                const AttentionShape& shape);
  using Node::save;
  std::vector<Tensor> backward(Tensor grad) override;

 private:
  AttentionCore& core_;
  AttentionShape shape_;
};

/// Backward of attention in eight bits. Saved: q, k, v (storage), lse, s_scale, o. `returns_quantized`: the gradient of
/// the packed projection stays in eight bits.
class QuantizedAttentionNode final : public Node {
 public:
  QuantizedAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, AttentionCore& core,
                         const AttentionShape& shape, bool returns_quantized);
  using Node::save;
  using Node::save_quantized;
  using Node::save_split;
  std::vector<Gradient> backward_of(Gradient grad) override;

 private:
  AttentionCore& core_;
  AttentionShape shape_;
  bool returns_quantized_;
};

}  // namespace fp8lab
