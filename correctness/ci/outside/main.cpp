#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "backend/device.h"
#include "harness/predict/predict.h"
#include "ops/quantize.h"
#include "recipe/recipe.h"

// Prints the largest relative error of a cast to FP8 and back, and the predicted bytes of a layer's weight.
int main() {
  using namespace fp8lab;
  const auto device = open_device("cpu");
  std::vector<float> values(32 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) / 2048.0f;
  const HolderId holder = device->holder(HolderKind::kInFlight);
  const Tensor x = device->allocate({Shape{32, 64}, DType::kF32}, holder);
  device->write(x, values);
  const QuantizedTensor cast = quantize(*device, x, {.format = make_recipe("mxfp8").activation, .holder = holder});
  const std::vector<float> back = device->read(dequantize(*device, cast.rowwise_operand(), DType::kF32, holder));
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(back[i] / values[i] - 1.0));
  std::printf("%.6f\n", worst);

  CellConfig cell;
  cell.device = "meta";
  cell.model = {.layer = "linear", .form = "llama", .layers = 2, .hidden = 256, .seq = 128};
  cell.measure = {"memory"};
  std::printf("%.0f\n", predict(cell, Arm::kAfter).at("memory.weight_bytes"));
}
