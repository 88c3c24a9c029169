#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/functions.h"
#include "autograd/node.h"
#include "backend/device.h"
#include "support/leaf_node.h"

namespace fp8lab::autograd_test {

/// Passes its gradient on after it has called a function. A probe between two nodes sees the state after the backward
/// of the later one.
class ProbeNode final : public Node {
 public:
  ProbeNode(Runtime& runtime, std::shared_ptr<Node> input, std::function<void(const Tensor&)> tell)
      : Node(runtime, "probe", {std::move(input)}), tell_(std::move(tell)) {}
  std::vector<Tensor> backward(Tensor grad) override {
    tell_(grad);
    return {std::move(grad)};
  }

 private:
  std::function<void(const Tensor&)> tell_;
};

inline Variable probe(Runtime& runtime, const Variable& x, std::function<void(const Tensor&)> tell) {
  return {x.value, std::make_shared<ProbeNode>(runtime, x.producer, std::move(tell))};
}

/// Saves the tensors that a test passes to it, and passes its gradient on.
class SavingNode final : public Node {
 public:
  using Node::Node;
  using Node::restore;
  using Node::save;
  using Node::save_quantized;
  using Node::save_split;

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    if (on_backward) on_backward(saved);
    return {std::move(grad)};
  }
  std::function<void(Restored&)> on_backward;
};

/// A device with poisoned memory, and the runtime on it.
struct Tape {
  explicit Tape(const Behaviors& behaviors = {}, std::string_view arch = "hopper", std::string_view device_name = "cpu")
      : device(open_device(device_name, {.arch = arch, .memory = {.capacity_bytes = 0, .poison = true}})),
        runtime{.device = *device, .behaviors = behaviors, .seed = 7} {}

  Tensor tensor(const Shape& shape, DType dtype, HolderKind kind, std::string_view what = {}, float value = 1.0f) {
    Tensor made = device->allocate({shape, dtype}, device->holder(kind, {}, what));
    device->write(made, std::vector<float>(static_cast<std::size_t>(made.numel()), value));
    return made;
  }
  std::int64_t bytes(HolderKind kind) { return device->ledger().by_kind().at(std::string(name(kind))); }
  /// Bytes of the group of holders whose label starts with `label`, "context of attention"; 0 if there is none.
  std::int64_t bytes_of(std::string_view label) {
    for (const auto& [text, held] : device->ledger().by_holder())
      if (text.compare(0, label.size(), label) == 0) return held;
    return 0;
  }
  void phase(PhaseKind kind) { device->ledger().set_phase(kind, 0); }

  std::unique_ptr<Device> device;
  Runtime runtime;
};

}  // namespace fp8lab::autograd_test
