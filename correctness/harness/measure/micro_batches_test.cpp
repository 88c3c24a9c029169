#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "autograd/functions.h"
#include "comm/process_groups.h"
#include "harness/train/options.h"
#include "harness/train/training_run.h"
#include "nn/build.h"
#include "nn/layer_table.h"
#include "nn/model.h"
#include "ops/elementwise.h"
#include "support/cells.h"
#include "support/quantize.h"
#include "support/recipe_names.h"

// Steps of several micro-batches: gradients and losses are means over them, or sums if the loss is a sum.
namespace fp8lab {
namespace {

using Values = std::vector<float>;
using Lists = std::vector<Values>;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

/// One step without an optimizer, in f32.
CellConfig one_step(std::string_view layer, std::int64_t micro_batches) {
  CellConfig cell = support::small_cell("bf16", "gpt", layer);
  cell.training.steps = 1;
  cell.training.optimizer = "none";
  cell.training.param_dtype = "f32";
  cell.training.micro_batches = micro_batches;
  if (layer == "grouped_linear") {  // 32 rows for one expert and 64 for the other; fewer rows would leave one without
    cell.model.experts = 2;
    cell.model.seq = 24;
    cell.model.batch = 4;
  }
  return cell;
}

/// `name` as the training loop fills it in the first step, for all micro-batches at once.
Values data(const CellConfig& cell, std::string_view name) {
  const auto device = support::open_poisoned_device();
  const std::int64_t tokens = cell.training.micro_batches * cell.model.seq * cell.model.batch;
  const Tensor tensor = device->allocate({{tokens, cell.model.hidden}, DType::kF32}, support::anyone(*device));
  random_fill(*device, tensor, {.seed = cell.training.seed, .stream = stream_of(name)});
  return device->read(tensor);
}

// y = x W^T with a bias of zeros; the loss of a step of T tokens is the mean of (y - t)^2 over T x H elements, for any
// number of micro-batches. So the gradients are sums over all tokens of g^T x and of g, with g = 2 (y - t) / (T H). In
// f32 a sum of n products has an error of at most n epsilon times the sum of their magnitudes.
TEST(MicroBatches, GradientsOfALinearAreThoseOfTheMeanOverTheStep) {
  const support::FinishedRun run(one_step("linear", 3));
  const CellConfig& cell = run.cell;
  const auto hidden = static_cast<std::size_t>(cell.model.hidden);
  const auto tokens = static_cast<std::size_t>(cell.model.seq * cell.model.batch), rows = 3 * tokens;
  const Values x = data(cell, "x"), target = data(cell, "target");
  const Values& w = run.run.values().initial_weights.at(0);
  const double scale = 2.0 / static_cast<double>(rows * hidden);
  std::vector<double> g(rows * hidden), g_error(rows * hidden);
  double loss = 0.0;
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t out = 0; out < hidden; ++out) {
      double y = 0.0, magnitude = 0.0;
      for (std::size_t in = 0; in < hidden; ++in) {
        const double product = static_cast<double>(x[row * hidden + in]) * static_cast<double>(w[out * hidden + in]);
        y += product;
        magnitude += std::abs(product);
      }
      const double distance = y - static_cast<double>(target[row * hidden + out]);
      g[row * hidden + out] = scale * distance;
      g_error[row * hidden + out] =
          scale * kEpsilon * (static_cast<double>(hidden + 1) * magnitude + 3.0 * std::abs(distance));
      loss += 0.5 * scale * distance * distance;
    }
  const Values& weight = run.run.values().gradients.at(0);
  const Values& bias = run.run.values().gradients.at(1);
  const auto terms = static_cast<double>(rows + 1);
  for (std::size_t out = 0; out < hidden; ++out) {
    double sum = 0.0, error = 0.0;
    for (std::size_t row = 0; row < rows; ++row) {
      sum += g[row * hidden + out];
      error += g_error[row * hidden + out] + terms * kEpsilon * std::abs(g[row * hidden + out]);
    }
    ASSERT_NEAR(static_cast<double>(bias[out]), sum, error) << "bias " << out;
    for (std::size_t in = 0; in < hidden; ++in) {
      sum = error = 0.0;
      for (std::size_t row = 0; row < rows; ++row) {
        const double of_x = static_cast<double>(x[row * hidden + in]);
        sum += g[row * hidden + out] * of_x;
        error += (g_error[row * hidden + out] + terms * kEpsilon * std::abs(g[row * hidden + out])) * std::abs(of_x);
      }
      ASSERT_NEAR(static_cast<double>(weight[out * hidden + in]), sum, error) << "weight " << out << ", " << in;
    }
  }
  ASSERT_EQ(run.run.losses().size(), 1u);
  EXPECT_NEAR(static_cast<double>(run.run.losses().front()), loss, 1e-5 * loss);
}

/// The first step of a cell over ranks, each of which takes its part of the micro-batches: gradients of unsharded
/// parameters and the losses in the order of ranks.
struct StepOverRanks {
  StepOverRanks(CellConfig cell, int ranks) {
    cell.ranks = ranks;
    cell.sharding = Sharded::kFsdp;
    cell.training.micro_batches /= ranks;
    losses.resize(static_cast<std::size_t>(ranks));
    std::vector<std::pair<std::vector<ElementRange>, Lists>> parts(losses.size());
    run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& world) {
      TrainingRun run(cell, {}, make_recipe(cell.training.recipe), {.world = &world});
      run.keep_values(true);
      run.train();
      const auto rank = static_cast<std::size_t>(world.rank());
      losses[rank] = run.losses().front();
      parts[rank] = {run.own_elements(), run.values().gradients};
    });
    gradients.resize(parts.front().second.size());
    for (const auto& [ranges, shards] : parts)
      for (std::size_t i = 0; i < shards.size(); ++i) {
        EXPECT_EQ(static_cast<std::int64_t>(gradients[i].size()), ranges[i].begin);
        for (const float value : shards[i]) gradients[i].push_back(value);
      }
  }
  Lists gradients;
  Values losses;
};

// Every micro-batch has the same gradients whichever rank makes them, since weights and tokens are the same. Only the
// order of the three sums differs, so each result is within 3 epsilon of the exact sum, relative to the magnitudes. A
// micro-batch's own gradient is the difference of two steps, times their micro-batches, that end with it and before it.
TEST(MicroBatches, GradientsAreThoseOfAsManyRanks) {
  constexpr int kMicroBatches = 4;
  for (const LayerRow& layer : layer_table()) {
    CellConfig cell = one_step(layer.name, kMicroBatches);
    cell.model.dropout = 0.1;
    std::vector<Lists> up_to;  // gradients of steps of 1, 2, ... micro-batches
    float loss = 0.0f;
    for (int n = 1; n <= kMicroBatches; ++n) {
      CellConfig shorter = cell;
      shorter.training.micro_batches = n;
      const support::FinishedRun run(shorter);
      up_to.push_back(run.run.values().gradients);
      for (Values& values : up_to.back())
        for (float& value : values) value *= static_cast<float>(n);
      loss = run.run.losses().front();
    }
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string(layer.name) + " over " + std::to_string(ranks));
      const StepOverRanks over(cell, ranks);
      ASSERT_EQ(over.gradients.size(), up_to.front().size());
      for (std::size_t i = 0; i < over.gradients.size(); ++i) {
        ASSERT_EQ(over.gradients[i].size(), up_to.back()[i].size());
        bool others_add = false;
        for (std::size_t j = 0; j < over.gradients[i].size(); ++j) {
          double magnitude = std::abs(up_to[0][i][j]);
          for (std::size_t n = 1; n < up_to.size(); ++n)
            magnitude += std::abs(static_cast<double>(up_to[n][i][j]) - static_cast<double>(up_to[n - 1][i][j]));
          others_add = others_add || up_to[3][i][j] != 4.0f * up_to[0][i][j];
          ASSERT_NEAR(4.0f * over.gradients[i][j], up_to.back()[i][j], 10.0 * kEpsilon * magnitude) << i << ", " << j;
        }
        EXPECT_TRUE(others_add) << "parameter " << i << " gets the same gradient from every micro-batch";
      }
      float mean = 0.0f;
      for (const float one : over.losses) mean += one / static_cast<float>(ranks);
      EXPECT_NEAR(mean, loss, 4.0 * kEpsilon * loss);
    }
  }
}

// nanoGPT divides the loss by its accumulation steps.
TEST(MicroBatches, MicroBatchesOfABatchHaveItsLossAndASumIsASum) {
  CellConfig one = one_step("layernorm_mlp", 1);
  one.model.batch = 8;
  CellConfig two = one;
  two.model.batch = 4;
  two.training.micro_batches = 2;
  for (const Loss loss : {Loss::kMse, Loss::kSum}) {
    one.training.loss = two.training.loss = loss;
    const support::FinishedRun entire(one), divided(two);
    const double expected = static_cast<double>(entire.run.losses().front());
    EXPECT_NEAR(static_cast<double>(divided.run.losses().front()), expected, 1e-5 * std::abs(expected) + 1e-4);
    double square = 0.0, distance = 0.0;
    for (std::size_t i = 0; i < entire.run.values().gradients.size(); ++i)
      for (std::size_t j = 0; j < entire.run.values().gradients[i].size(); ++j) {
        const double value = static_cast<double>(entire.run.values().gradients[i][j]);
        const double other = static_cast<double>(divided.run.values().gradients[i][j]);
        square += value * value;
        distance += (value - other) * (value - other);
      }
    EXPECT_LT(distance, 1e-8 * square);
    EXPECT_GT(square, 0.0);
  }
}

// Under sharding gradients are reduced after every backward, and shards are added; amaxes are shared after every pass.
TEST(MicroBatches, OneShardTrainsBitForBitAsNoShards) {
  for (const char* recipe : support::recipe_names())
    for (const bool quantized_weights : {false, true})
      for (const char* checkpoint : {"none", "full"}) {
        SCOPED_TRACE(testing::Message() << recipe << " " << quantized_weights << " " << checkpoint);
        CellConfig cell = support::small_cell(recipe);
        cell.training.micro_batches = 3;
        cell.training.checkpoint = checkpoint;
        cell.training.quantized_weights = quantized_weights;
        if (quantized_weights) cell.training.master_weights = "f32";
        const support::FinishedRun alone(cell);
        cell.sharding = Sharded::kFsdp;
        cell.training.deferred_init = true;
        run_ranks("in_process", {.ranks = 1}, [&](ProcessGroup& world) {
          TrainingRun run(cell, {}, make_recipe(recipe), {.world = &world});
          run.keep_values(true);
          run.run();
          EXPECT_EQ(run.losses(), alone.run.losses());
          EXPECT_EQ(run.values().gradients, alone.run.values().gradients);
          EXPECT_EQ(run.values().weights, alone.run.values().weights);
        });
      }
}

/// Gradients of the first step of a cell in BF16 without an optimizer, by the loop that users write. `every_pass`:
/// scales move on after every forward and backward, otherwise after the step.
Lists gradients_of_a_loop(const CellConfig& cell, bool every_pass) {
  const auto device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}, .seed = cell.training.seed};
  Model model(runtime, make_recipe(cell.training.recipe),
              {.layer = cell.model.layer, .layers = cell.model.layers, .config = layer_config(cell.model, false)});
  const std::int64_t tokens = cell.model.seq * cell.model.batch;
  for (std::int64_t i = 0; i < cell.training.micro_batches; ++i) {
    const auto filled = [&](std::string_view name) {
      Tensor tensor = device->allocate({{tokens, cell.model.hidden}, DType::kBF16}, support::anyone(*device));
      random_fill(*device, tensor, {.seed = runtime.seed, .stream = stream_of(name), .row_offset = i * tokens});
      return tensor;
    };
    const bool updates = every_pass || i + 1 == cell.training.micro_batches;
    const Variable loss = mse_loss(runtime, model.forward(runtime, {filled("x"), nullptr}), filled("target"));
    if (updates) model.update_forward_scales(runtime);
    Tensor share = device->allocate({{1, 1}, DType::kF32}, support::anyone(*device));
    fill(*device, share, 1.0f / static_cast<float>(cell.training.micro_batches));
    run_backward(runtime, loss, std::move(share));
    if (updates) model.update_backward_scales(runtime);
  }
  Lists gradients;
  for (const Parameter* parameter : model.parameters()) gradients.push_back(device->read(parameter->grad));
  return gradients;
}

TEST(MicroBatches, ScalesMoveOnAfterEveryPass) {
  for (const char* recipe : support::recipe_names()) {
    CellConfig cell = support::small_cell(recipe);
    cell.training.steps = 1;
    cell.training.optimizer = "none";
    cell.training.micro_batches = 3;
    const support::FinishedRun run(cell);
    EXPECT_EQ(run.run.values().gradients, gradients_of_a_loop(cell, true)) << recipe;
    EXPECT_EQ(run.run.values().gradients == gradients_of_a_loop(cell, false), std::string(recipe) != "delayed")
        << recipe;
  }
}

// A cached copy has the bits of a copy that every pass makes: the weight is the same, and so is its scale unless that
// comes from a history, which moves on between micro-batches. Validation leaves no trace, except in such a history.
TEST(MicroBatches, CachedWeightsAndValidationChangeNoBit) {
  for (const char* recipe : {"bf16", "current", "block", "mxfp8"})
    for (const char* arch : {"hopper", "blackwell"})
      for (const char* op_fuser : {"none", "mlp"})
        for (const char* checkpoint : {"none", "full"}) {
          SCOPED_TRACE(testing::Message() << recipe << " " << arch << " " << op_fuser << " " << checkpoint);
          CellConfig cell = support::small_cell(recipe);
          cell.arch = arch;
          cell.model.op_fuser = op_fuser;
          cell.training.micro_batches = 2;
          cell.training.checkpoint = checkpoint;
          const support::FinishedRun plain(cell);
          cell.training.cache_weights = true;
          for (const std::int64_t validation_batches : {0, 2}) {
            cell.training.validation_batches = validation_batches;
            const support::FinishedRun cached(cell);
            EXPECT_EQ(cached.run.losses(), plain.run.losses());
            EXPECT_EQ(cached.run.values().gradients, plain.run.values().gradients);
            EXPECT_EQ(cached.run.values().weights, plain.run.values().weights);
          }
        }
}

// One product, 1024 x 1024, delayed scaling on hopper: the cached copy, both orientations and their scale, is alive at
// the end of every step, and nothing else of it is saved.
TEST(MicroBatches, CachedCopiesLiveOn) {
  CellConfig cell;
  cell.model = {.layer = "linear", .form = "llama", .hidden = 1024, .seq = 16};
  cell.device = "meta";
  cell.training.recipe = "delayed";
  cell.training.micro_batches = 2;
  support::FinishedRun plain(cell);
  cell.training.cache_weights = true;
  support::FinishedRun cached(cell);
  const auto more = [&](const char* mark) { return cached.mark(mark).live_bytes - plain.mark(mark).live_bytes; };
  EXPECT_EQ(more("end_of_forward"), 0);
  EXPECT_EQ(more("end_of_backward"), 2 * 1024 * 1024 + 4);
  EXPECT_EQ(more("end_of_step"), 2 * 1024 * 1024 + 4);
  EXPECT_EQ(cached.mark("end_of_backward").retained_bytes, 0);
}

}  // namespace
}  // namespace fp8lab
