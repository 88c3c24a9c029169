#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "backend/device.h"
#include "nn/model.h"

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

using Values = std::vector<float>;

struct LayerCase {
  ModelOptions model;
  std::string_view recipe = "bf16";
  std::string_view arch = "hopper";
  double input_scale = 1.0;
  double target_scale = 1.0;
  std::int64_t row_offset = 0;  ///< the index of the first token among the tokens of all ranks
};

/// One forward and backward of a model, on the host.
struct LayerStep {
  float loss = 0.0f;
  Values output;
  Values input_gradient;
  std::map<std::string, Values> gradients;  ///< by parameter
};

/// A model on the cpu whose parameters are far from their initial values, so that each of them matters: weights of
/// standard deviation 1 / sqrt(in), gammas around 1, biases and betas around 0. The loss is the mean squared difference
/// to a target; input and target are the same in every step. Memory is poisoned.
class LayerRun {
 public:
  explicit LayerRun(const LayerCase& layer_case);

  /// Forward, scale updates, backward; parameters do not change.
  LayerStep step();

  Runtime& runtime() { return runtime_; }
  Device& device() { return *device_; }
  Model& model() { return model_; }
  const Values& input() const { return input_; }
  const Values& target() const { return target_; }
  std::map<std::string, Values> parameters();

 private:
  Tensor upload(std::string_view name, const Values& values);

  LayerCase case_;
  std::unique_ptr<Device> device_;
  Runtime runtime_;
  Model model_;
  Values input_;
  Values target_;
};

}  // namespace fp8lab::support
