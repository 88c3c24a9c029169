#include "autograd/functions.h"

#include <utility>

#include "ops/loss.h"

namespace fp8lab {
namespace {

class AddNode final : public Node {
 public:
  using Node::Node;
  std::vector<Tensor> backward(Tensor grad) override { return {grad, grad}; }
};

class DropoutNode final : public Node {
 public:
  DropoutNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, const DropoutKey& key)
      : Node(runtime, std::move(name), {std::move(input)}), key_(key) {}
  std::vector<Tensor> backward(Tensor grad) override {
    return {dropout(device(), grad, key_, runtime().in_flight(name()))};
  }

 private:
  DropoutKey key_;
};

class SumLossNode final : public Node {
 public:
  SumLossNode(Runtime& runtime, std::shared_ptr<Node> input, const TensorSpec& spec)
      : Node(runtime, "loss", {std::move(input)}), spec_(spec) {}
  std::vector<Tensor> backward(Tensor grad) override {
    return {sum_loss_backward(device(), spec_, grad, runtime().in_flight(name()))};
  }

 private:
  TensorSpec spec_;
};

class MseLossNode final : public Node {
 public:
  MseLossNode(Runtime& runtime, const Variable& x) : Node(runtime, "loss", {x.producer}) {}
  void save_operands(const Tensor& x, const Tensor& target) {
    save("x", x);
    save("target", target);
  }
  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    return {mse_loss_backward(device(), saved.tensor(0), saved.tensor(1), grad, runtime().in_flight(name()))};
  }
};

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(Runtime& runtime, const Variable& logits) : Node(runtime, "loss", {logits.producer}) {}
  void save_operands(const Tensor& logits, const Tensor& targets, const Tensor& log_sums) {
    save("logits", logits);
    save("targets", targets);
    save("log sums", log_sums);
  }
  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    const Tensor& logits = saved.tensor(0);
    cross_entropy_gradient_in_place(device(), logits, saved.tensor(1), saved.tensor(2), grad);
    return {logits.held_by(runtime().in_flight(name()))};
  }
};

}  // namespace

Variable add(Runtime& runtime, std::string name, const Variable& a, const Variable& b) {
  Tensor sum = add(runtime.device, a.value, b.value, runtime.in_flight(name));
  return {std::move(sum), std::make_shared<AddNode>(runtime, std::move(name),
                                                    std::vector<std::shared_ptr<Node>>{a.producer, b.producer})};
}

Variable dropout(Runtime& runtime, std::string name, const Variable& x, const DropoutKey& key) {
  if (runtime.dropout(key.probability) == 0.0f) return x;
  Tensor kept = dropout(runtime.device, x.value, key, runtime.in_flight(name));
  return {std::move(kept), std::make_shared<DropoutNode>(runtime, std::move(name), x.producer, key)};
}

Variable sum_loss(Runtime& runtime, const Variable& x) {
  const HolderId holder = runtime.device.holder(HolderKind::kOutput, "", "loss");
  return {sum_loss(runtime.device, x.value, holder),
          std::make_shared<SumLossNode>(runtime, x.producer, x.value.spec())};
}

Variable mse_loss(Runtime& runtime, const Variable& x, const Tensor& target) {
  const HolderId holder = runtime.device.holder(HolderKind::kOutput, "", "loss");
  const auto node = std::make_shared<MseLossNode>(runtime, x);
  node->save_operands(x.value, target);
  return {mse_loss(runtime.device, x.value, target, holder), node};
}

Variable cross_entropy(Runtime& runtime, const Variable& logits, const Tensor& targets) {
  const HolderId holder = runtime.device.holder(HolderKind::kOutput, "", "loss");
  CrossEntropy made = cross_entropy(runtime.device, logits.value, targets, holder, runtime.workspace("loss"));
  const auto node = std::make_shared<CrossEntropyNode>(runtime, logits);
  node->save_operands(logits.value, targets, made.log_sums);
  return {std::move(made.loss), node};
}

}  // namespace fp8lab
