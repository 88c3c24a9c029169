#include "harness/train/layer_taps.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace fp8lab {
namespace {

/// Passes a gradient on.
class TapNode final : public Node {
 public:
  TapNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, std::vector<float>& gradient)
      : Node(runtime, std::move(name), {std::move(input)}), gradient_(gradient) {}
  std::vector<Tensor> backward(Tensor grad) override {
    gradient_ = device().read(grad);
    return {std::move(grad)};
  }

 private:
  std::vector<float>& gradient_;
};

class TappedLayer final : public Module {
 public:
  TappedLayer(std::unique_ptr<Module> layer, std::string name, LayerValues& values)
      : layer_(std::move(layer)), name_(std::move(name)), values_(values) {}
  Variable forward(Runtime& runtime, const Variable& x) override {
    values_.input = runtime.device.read(x.value);
    const Variable y = layer_->forward(runtime, x);
    values_.output = runtime.device.read(y.value);
    return {y.value, std::make_shared<TapNode>(runtime, name_ + ".tap", y.producer, values_.gradient)};
  }

 private:
  std::unique_ptr<Module> layer_;
  std::string name_;
  LayerValues& values_;
};

}  // namespace

void tap_layers(Model& model, std::vector<LayerValues>& layers) {
  const std::vector<std::string> names = model.layer_names();
  layers.assign(names.size(), {});
  model.wrap_modules([&](std::unique_ptr<Module> module, const std::string& name,
                         std::span<Parameter* const>) -> std::unique_ptr<Module> {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) return module;  // the root
    return std::make_unique<TappedLayer>(std::move(module), name, layers[static_cast<std::size_t>(at - names.begin())]);
  });
}

}  // namespace fp8lab
