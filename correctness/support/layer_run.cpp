#include "support/layer_run.h"

#include <cmath>

#include "autograd/functions.h"
#include "reference/test_data.h"
#include "support/test_device.h"

namespace fp8lab::support {
namespace {

constexpr std::uint64_t kSeed = 20240611;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

Values values_for(std::string_view name, std::int64_t count, double deviation, float mean = 0.0f) {
  Values values = reference::gaussian_values(count, stream_of(name), deviation);
  for (float& value : values) value += mean;
  return values;
}

Values initial_values(const Parameter& parameter) {
  const std::int64_t count = parameter.value.numel();
  if (ends_with(parameter.name, ".weight"))
    return values_for(parameter.name, count, 1.0 / std::sqrt(static_cast<double>(parameter.value.cols())));
  return values_for(parameter.name, count, 0.3, ends_with(parameter.name, ".gamma") ? 1.0f : 0.0f);
}

}  // namespace

LayerRun::LayerRun(const LayerCase& layer_case)
    : case_(layer_case),
      device_(open_poisoned_device(layer_case.arch)),
      runtime_{.device = *device_, .behaviors = {}, .seed = kSeed, .step = 2, .row_offset = layer_case.row_offset},
      model_(runtime_, make_recipe(layer_case.recipe), layer_case.model) {
  for (Parameter* parameter : model_.parameters()) device_->write(parameter->value, initial_values(*parameter));
  const LayerConfig& config = case_.model.config;
  const std::int64_t count = config.tokens() * config.hidden;
  // The reference starts from the values that the tensors hold, which are rounded if they are bf16.
  input_ = device_->read(upload("x", values_for("x", count, case_.input_scale)));
  target_ = device_->read(upload("target", values_for("target", count, case_.target_scale)));
}

Tensor LayerRun::upload(std::string_view name, const Values& values) {
  const LayerConfig& config = case_.model.config;
  const TensorSpec spec{Shape{config.tokens(), config.hidden}, case_.model.dtype};
  Tensor tensor = device_->allocate(spec, device_->holder(HolderKind::kInput, "", name));
  device_->write(tensor, values);
  return tensor;
}

LayerStep LayerRun::step() {
  const auto leaf = std::make_shared<LeafNode>(runtime_);
  const Variable output = model_.forward(runtime_, {upload("x", input_), leaf});
  const Variable loss = mse_loss(runtime_, output, upload("target", target_));
  model_.update_forward_scales(runtime_);
  run_backward(runtime_, loss);
  model_.update_backward_scales(runtime_);

  LayerStep result;
  result.loss = device_->read(loss.value).front();
  result.output = device_->read(output.value);
  result.input_gradient = device_->read(leaf->gradient());
  for (const Parameter* parameter : model_.parameters())
    result.gradients[parameter->name] = device_->read(parameter->grad);
  model_.zero_grad();
  return result;
}

std::map<std::string, Values> LayerRun::parameters() {
  std::map<std::string, Values> values;
  for (const Parameter* parameter : model_.parameters()) values[parameter->name] = device_->read(parameter->value);
  return values;
}

}  // namespace fp8lab::support
