#include "harness/train/layer_taps.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace fp8lab {
namespace {

/// Passes a gradient on.
class TapNode final : public Node {
 public:
  TapNode(Runtime& runtime, const std::string& layer, std::shared_ptr<Node> input, std::vector<float>& gradient,
          const SawLayer& saw)
      : Node(runtime, layer + ".tap", {std::move(input)}), layer_(layer), gradient_(gradient), saw_(saw) {}
  std::vector<Tensor> backward(Tensor grad) override {
    gradient_ = device().read(grad);
    if (saw_) saw_(layer_, LayerTensor::kGradient, gradient_);
    return {std::move(grad)};
  }

 private:
  std::string layer_;
  std::vector<float>& gradient_;
  SawLayer saw_;
};

class TappedLayer final : public Module {
 public:
  TappedLayer(std::unique_ptr<Module> layer, std::string name, LayerValues& values, SawLayer saw)
      : layer_(std::move(layer)), name_(std::move(name)), values_(values), saw_(std::move(saw)) {}
  Variable forward(Runtime& runtime, const Variable& x) override {
    values_.input = runtime.device.read(x.value);
    if (saw_) saw_(name_, LayerTensor::kInput, values_.input);
    const Variable y = layer_->forward(runtime, x);
    values_.output = runtime.device.read(y.value);
    if (saw_) saw_(name_, LayerTensor::kOutput, values_.output);
    return {y.value, std::make_shared<TapNode>(runtime, name_, y.producer, values_.gradient, saw_)};
  }

 private:
  std::unique_ptr<Module> layer_;
  std::string name_;
  LayerValues& values_;
  SawLayer saw_;
};

}  // namespace

void tap_layers(Model& model, std::vector<LayerValues>& layers, const SawLayer& saw) {
  const std::vector<std::string> names = model.layer_names();
  layers.assign(names.size(), {});
  model.wrap_modules([&](std::unique_ptr<Module> module, const std::string& name,
                         std::span<Parameter* const>) -> std::unique_ptr<Module> {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) return module;  // the root
    LayerValues& values = layers[static_cast<std::size_t>(at - names.begin())];
    return std::make_unique<TappedLayer>(std::move(module), name, values, saw);
  });
}

}  // namespace fp8lab
