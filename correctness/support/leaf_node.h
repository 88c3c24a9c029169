#pragma once

#include <utility>
#include <vector>

#include "autograd/node.h"

namespace fp8lab::support {

/// A producer without inputs that keeps the gradient it receives.
class LeafNode final : public Node {
 public:
  explicit LeafNode(Runtime& runtime) : Node(runtime, "leaf", {}) {}
  std::vector<Tensor> backward(Tensor grad) override {
    gradient_ = std::move(grad);
    return {};
  }
  const Tensor& gradient() const { return gradient_; }

 private:
  Tensor gradient_;
};

}  // namespace fp8lab::support
