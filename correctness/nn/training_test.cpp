// Training reduces the loss under every recipe and reads no value that was never written.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "harness/train/options.h"
#include "ops/elementwise.h"
#include "optim/adam.h"
#include "support/cells.h"
#include "support/dense.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

class Training : public ::testing::TestWithParam<const char*> {};

// The same batch in every step: a layer with correct gradients learns it by heart.
TEST_P(Training, ReducesTheLossAndMovesEveryWeight) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}, .seed = 3};
  const CellConfig cell = support::small_cell(GetParam());
  Model model(runtime, make_recipe(GetParam()),
              {.layer = "transformer_layer", .layers = 1, .config = layer_config(cell.model, true)});
  Adam adam(model.parameters(), {.learning_rate = 1e-2});
  const Shape shape{cell.model.seq * cell.model.batch, cell.model.hidden};
  const Tensor x = device->allocate({shape, DType::kBF16}, device->holder(HolderKind::kInput, "", "x"));
  const Tensor target = device->allocate({shape, DType::kBF16}, device->holder(HolderKind::kInput, "", "target"));
  random_fill(*device, x, {.seed = 3, .stream = 1});
  random_fill(*device, target, {.seed = 3, .stream = 2});
  std::vector<std::vector<float>> initial;
  for (const Parameter* parameter : model.parameters()) initial.push_back(device->read(parameter->value));

  std::vector<float> losses;
  for (int step = 0; step < 12; ++step) {
    const Variable loss = mse_loss(runtime, model.forward(runtime, {x, nullptr}), target);
    model.update_forward_scales(runtime);
    run_backward(runtime, loss);
    model.update_backward_scales(runtime);
    adam.step(runtime);
    model.zero_grad();
    losses.push_back(device->read(loss.value).front());
  }
  EXPECT_NEAR(losses.front(), 2.0f, 0.3f) << "two independent normal numbers differ by a variance of 2";
  EXPECT_LT(losses.back(), 0.7f * losses.front());
  for (std::size_t i = 0; i < initial.size(); ++i)
    EXPECT_NE(device->read(model.parameters()[i]->value), initial[i]) << model.parameters()[i]->name << " is frozen";
}

INSTANTIATE_TEST_SUITE_P(Recipes, Training, ::testing::ValuesIn(support::recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fp8lab
