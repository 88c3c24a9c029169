#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/build.h"
#include "nn/layer_config.h"
#include "ops/elementwise.h"
#include "optim/adam.h"
#include "recipe/recipe.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/quantize.h"

/// What the tests of optimizers share: parameters in high precision and in eight bits, unsharded and sharded, whose
/// values and gradients follow from (seed, global index).
namespace fp8lab::optim_test {

/// A device for ranks that are threads, which read each other's memory on the host, and for tests of host code.
inline std::unique_ptr<Device> open_host() {
  return open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}});
}

inline std::vector<float> rows_of(std::uint64_t seed, double deviation, std::int64_t first_row, const Shape& shape) {
  return reference::gaussian_values(shape.numel(), seed, deviation,
                                    static_cast<std::uint64_t>(first_row * shape.cols()));
}

/// The smallest GPT layer that `recipe` takes.
inline LayerConfig small_layer(std::string_view recipe) {
  const bool wide_blocks = make_recipe(recipe).rows_multiple > 32;
  const std::int64_t unit = wide_blocks ? 128 : 32;
  return {.form = layer_form("gpt"),
          .hidden = unit,
          .heads = 2,
          .kv_heads = 2,
          .ffn = wide_blocks ? unit : 2 * unit,
          .seq = unit / 2,
          .batch = 2,
          .fp8_attention = true};
}

struct ParameterSpec {
  std::string name = "w";
  Shape shape = {256, 128};
  DType dtype = DType::kBF16;
  const char* recipe = "bf16";  ///< unless bf16, the parameter is stored in this recipe's weight format
  std::int64_t first_row = 0;
  ProcessGroup* group = nullptr;
};

/// A parameter with seeded values whose initial values are unknown.
inline std::unique_ptr<Parameter> make_parameter(Device& device, const ParameterSpec& spec) {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = spec.name;
  parameter->spec = {spec.shape, spec.dtype};
  const Tensor values =
      support::make_tensor(device, spec.shape, spec.dtype, rows_of(1, 0.5, spec.first_row, spec.shape));
  const Recipe recipe = make_recipe(spec.recipe);
  if (!recipe.quantized) {
    parameter->value = values;
    return parameter;
  }
  parameter->quantizer = std::make_unique<Quantizer>();
  Quantizer& quantizer = *parameter->quantizer;
  quantizer.format = recipe.weight;
  quantizer.orientations = {.rowwise = true, .columnwise = true};
  quantizer.amax_group = spec.group;
  quantizer.holder = support::anyone(device);
  if (recipe.weight.amax_source == AmaxSource::kHistory) {
    quantizer.scale = support::scalar(device, 96.0f);
    quantizer.amax = support::scalar(device, 0.0f);
  }
  parameter->quantized = quantize(device, values, quantizer);
  return parameter;
}

/// An unsharded parameter whose storage has been replaced by its shard's.
struct Sharded {
  std::unique_ptr<Parameter> shard;
  Parameter unsharded;

  Sharded(Device& device, const ParameterSpec& spec, const Shape& unsharded_shape)
      : shard(optim_test::make_parameter(device, spec)) {
    unsharded.name = spec.name;
    unsharded.spec = {unsharded_shape, spec.dtype};
    if (shard->quantizer) unsharded.quantizer = std::make_unique<Quantizer>(*shard->quantizer);
    unsharded.local = shard.get();
  }
};

inline void set_gradient(Device& device, Parameter& parameter, int step, std::int64_t first_row = 0,
                         double deviation = 0.1) {
  const auto seed = static_cast<std::uint64_t>(1000 + step);
  parameter.grad = support::make_tensor(device, parameter.spec.shape, parameter.spec.dtype,
                                        rows_of(seed, deviation, first_row, parameter.spec.shape));
}

/// Every byte of a quantized tensor: data and scales of both orientations.
inline std::vector<std::uint8_t> all_bytes(Device& device, const QuantizedTensor& tensor) {
  std::vector<std::uint8_t> bytes;
  for (const QuantizedOrientation* half : {&tensor.rowwise(), &tensor.columnwise()})
    for (const Tensor* buffer : {&half->data, &half->scale_inv}) {
      if (!*buffer) continue;
      const std::vector<std::uint8_t> part = support::bytes_of(device, *buffer);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  return bytes;
}

}  // namespace fp8lab::optim_test
