// Adam over the shards of parameters: it clips by the norm of all, and skips empty ones.

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "comm/process_groups.h"
#include "core/heap_allocations.h"
#include "fsdp/sharded_parameter.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

/// The rows of a matrix over ranks, as offsets.
using Cut = std::vector<std::int64_t>;

struct Gathered {
  std::vector<float> master;
  std::vector<std::uint8_t> data;
  float norm = 0.0f;
};

/// A quantized matrix, a vector in 16 bits that only the first rank has, and an empty one, after five steps over the
/// ranks of `cut`.
Gathered run(const char* recipe, const Cut& cut, double max_grad_norm) {
  const int ranks = static_cast<int>(cut.size()) - 1;
  std::vector<Gathered> parts(static_cast<std::size_t>(ranks));
  run_ranks("in_process", {.ranks = ranks}, [&](ProcessGroup& group) {
    const std::unique_ptr<Device> device = open_host();
    Runtime runtime{.device = *device, .behaviors = {}};
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::int64_t first = cut[rank], rows = cut[rank + 1] - first;
    Sharded matrix(*device, {.shape = {rows, 128}, .recipe = recipe, .first_row = first, .group = &group}, {384, 128});
    const std::int64_t vector_rows = rank == 0 ? 40 : 0;
    Sharded vector(*device, {.name = "v", .shape = {vector_rows}, .group = &group}, {40});
    Sharded empty(*device, {.name = "e", .shape = {0, 128}, .recipe = recipe, .group = &group}, {0, 128});
    Adam adam(
        {&empty.unsharded, &matrix.unsharded, &vector.unsharded, &empty.unsharded},
        {.learning_rate = 1e-2, .master = MasterWeights::kF32, .max_grad_norm = max_grad_norm, .norm_group = &group});
    for (int step = 1; step <= 5; ++step) {
      set_gradient(*device, *matrix.shard, step, first);
      set_gradient(*device, *vector.shard, step);
      if (step != 3) set_gradient(*device, *empty.shard, step);
      adam.step(runtime);
    }
    Gathered& own = parts[rank];
    own.master = device->read(adam.state()[1].master);
    own.data = support::bytes_of(*device, matrix.shard->quantized.rowwise().data);
    if (max_grad_norm > 0.0) own.norm = device->read(adam.grad_norm()).front();
  });
  Gathered all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all.master.insert(all.master.end(), parts[i].master.begin(), parts[i].master.end());
    all.data.insert(all.data.end(), parts[i].data.begin(), parts[i].data.end());
    EXPECT_EQ(parts[i].norm, all.norm);
  }
  return all;
}

class ShardedAdam : public ::testing::TestWithParam<const char*> {};

// Shards of full blocks: uneven, and empty at any place.
TEST_P(ShardedAdam, EqualsTheSlicesOfOneRanksResult) {
  const Gathered unsharded = run(GetParam(), {0, 384}, 0.0);
  for (const Cut& cut : {Cut{0, 128, 256, 384}, Cut{0, 256, 384}, Cut{0, 0, 384, 384}, Cut{0, 128, 128, 384}}) {
    const Gathered sharded = run(GetParam(), cut, 0.0);
    EXPECT_TRUE(bitwise_equal(sharded.master, unsharded.master));
    EXPECT_TRUE(bitwise_equal(sharded.data, unsharded.data));
  }
}

TEST_P(ShardedAdam, ClipsByTheNormOfAllShards) {
  double squares = 0.0;
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  for (const Shape& shape : {Shape{384, 128}, Shape{40}}) {
    const auto parameter = optim_test::make_parameter(*device, {.shape = shape});
    set_gradient(*device, *parameter, 5);
    for (const double g : support::read(*device, parameter->grad)) squares += g * g;
  }
  const Gathered unsharded = run(GetParam(), {0, 384}, 0.5);
  const Gathered sharded = run(GetParam(), {0, 0, 256, 384}, 0.5);
  // The sum is rounded once on each rank and once for each rank added, the root once.
  EXPECT_NEAR(unsharded.norm, std::sqrt(squares), 2.0 * 0x1p-24 * std::sqrt(squares));
  EXPECT_NEAR(sharded.norm, std::sqrt(squares), 4.0 * 0x1p-24 * std::sqrt(squares));
}
INSTANTIATE_TEST_SUITE_P(Recipes, ShardedAdam, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

// The coefficient is applied inside the kernel: bitwise equal to a step on gradients multiplied by it beforehand.
TEST(Clipping, EqualsAMultiplicationOfTheGradient) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto a = optim_test::make_parameter(*device, {.shape = {40, 50}, .dtype = DType::kF32});
  const auto b = optim_test::make_parameter(*device, {.shape = {40, 50}, .dtype = DType::kF32});
  Adam clipped({a.get()}, {.learning_rate = 0.1, .epsilon = 1e-3, .max_grad_norm = 0.25}),
      plain({b.get()}, {.learning_rate = 0.1, .epsilon = 1e-3});
  set_gradient(*device, *a, 1);
  std::vector<float> gradients = device->read(a->grad);
  clipped.step(runtime);
  const float coefficient = 0.25f / (device->read(clipped.grad_norm()).front() + 1e-6f);
  ASSERT_LT(coefficient, 0.1f);
  for (float& g : gradients) g *= coefficient;
  b->grad = support::make_tensor(*device, {40, 50}, DType::kF32, gradients);
  plain.step(runtime);
  EXPECT_TRUE(bitwise_equal(device->read(a->value), device->read(b->value)));
  // Below the limit gradients are not multiplied.
  Adam wide({a.get()}, {.learning_rate = 0.1, .max_grad_norm = 1e6}), none({b.get()}, {.learning_rate = 0.1});
  b->grad = a->grad;
  wide.step(runtime);
  none.step(runtime);
  EXPECT_TRUE(bitwise_equal(device->read(a->value), device->read(b->value)));
}

// A parameter that no rank shards is in the list of every rank and counts once.
TEST(Clipping, CountsReplicatedParametersOnce) {
  std::array<float, 3> norms{};
  run_ranks("in_process", {.ranks = 3}, [&](ProcessGroup& group) {
    const std::unique_ptr<Device> device = open_host();
    Runtime runtime{.device = *device, .behaviors = {}};
    const auto parameter = optim_test::make_parameter(*device, {.shape = {2, 2}, .dtype = DType::kF32});
    parameter->grad = support::make_tensor(*device, {2, 2}, DType::kF32, {1.0f, 1.0f, 1.0f, 1.0f});
    Adam adam({parameter.get()}, {.max_grad_norm = 1.0, .norm_group = &group});
    adam.step(runtime);
    norms[static_cast<std::size_t>(group.rank())] = device->read(adam.grad_norm()).front();
  });
  for (const float norm : norms) EXPECT_EQ(norm, 2.0f);
}

TEST(Clipping, NanNormMakesTheParameterNan) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {1, 2}, .dtype = DType::kF32});
  parameter->grad = support::make_tensor(*device, {1, 2}, DType::kF32, {1.0f, std::nanf("")});
  Adam adam({parameter.get()}, {.max_grad_norm = 1.0});
  adam.step(runtime);
  for (const float value : device->read(parameter->value)) EXPECT_TRUE(std::isnan(value));
}

TEST(SteadyState, AllocatesNothingFromTheHeap) {
  const std::unique_ptr<Device> device = open_device("cpu");
  Runtime runtime{.device = *device, .behaviors = {}};
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> list;
  for (const char* recipe : support::recipe_names()) {
    parameters.push_back(
        optim_test::make_parameter(*device, {.name = std::string("a long name for ") + recipe, .recipe = recipe}));
    list.push_back(parameters.back().get());
    set_gradient(*device, *list.back(), 1);
  }
  Adam adam(list, {.master = MasterWeights::kF32, .exp_avg = DType::kE4M3, .max_grad_norm = 1.0});
  adam.step(runtime);
  adam.step(runtime);
  const std::int64_t heap = heap_allocations();
  for (int step = 0; step < 5; ++step) adam.step(runtime);
  EXPECT_EQ(heap_allocations(), heap);
}

/// Four weights of a recipe and their optimizer, after a first step.
struct FourWeights {
  std::unique_ptr<Device> device = open_device("cpu");
  Runtime runtime{.device = *device, .behaviors = {}};
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> list;

  explicit FourWeights(const char* recipe) {
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(optim_test::make_parameter(*device, {.name = std::to_string(i), .recipe = recipe}));
      list.push_back(parameters.back().get());
      set_gradient(*device, *list.back(), 1);
    }
  }
};

// Weights under one scale are rounded as they are cast; blocks need one temporary in the nominal type at a time.
TEST(SteadyState, NeedsAtMostOneTemporaryAtATime) {
  constexpr std::int64_t kScalars = 64, kRounded = 256 * 128 * 2;
  for (const auto& [recipe, most] :
       {std::pair{"delayed", std::int64_t{0}}, {"current", kScalars}, {"block", kRounded}, {"mxfp8", kRounded}}) {
    FourWeights weights(recipe);
    Adam adam(weights.list, {.master = MasterWeights::kF32});
    adam.make_state(weights.runtime);
    const std::int64_t before = weights.device->ledger().live_bytes();
    weights.device->ledger().reset_peak();
    adam.step(weights.runtime);
    EXPECT_LE(weights.device->ledger().peak_bytes() - before, most) << recipe;
  }
}

// Under one scale the number of launches does not depend on the number of weights, with a gradient or without.
TEST(SteadyState, LaunchesDoNotDependOnTheNumberOfWeights) {
  for (const auto& [recipe, all, some] : {std::tuple{"delayed", 1, 2}, {"current", 3, 4}}) {
    FourWeights weights(recipe);
    Adam adam(weights.list, {.master = MasterWeights::kF32});
    adam.step(weights.runtime);
    const std::int64_t first = weights.device->launches();
    adam.step(weights.runtime);
    EXPECT_EQ(weights.device->launches() - first, all) << recipe;
    weights.list[1]->grad = weights.list[2]->grad = {};
    const std::int64_t second = weights.device->launches();
    adam.step(weights.runtime);
    EXPECT_EQ(weights.device->launches() - second, some) << recipe;
  }
}

TEST(GradientsOfShards, MustHaveTheShardsShape) {
  const std::unique_ptr<Device> device = open_device("cpu");
  Runtime runtime{.device = *device, .behaviors = {}};
  Sharded parameter(*device, {.name = "blocks.7", .shape = {128, 128}}, {256, 128});
  parameter.shard->grad = support::make_tensor(*device, {256, 128}, DType::kBF16, rows_of(1, 1.0, 0, {256, 128}));
  Adam adam({&parameter.unsharded}, {});
  const std::string message = support::error_of([&] { adam.step(runtime); });
  EXPECT_NE(message.find("blocks.7"), std::string::npos) << message;
}

// Rows that end inside a block have its scale, in shards and in the gathered parameter.
TEST(GatheredShards, MayEndInsideABlock) {
  struct Ends {
    const char* recipe;
    Shape shape;
  };
  for (const Ends& c : {Ends{"block", {255, 128}}, {"mxfp8", {63, 64}}, {"mxfp8", {129, 32}}}) {
    run_ranks("in_process", {.ranks = 2}, [&](ProcessGroup& group) {
      const std::unique_ptr<Device> device = open_host();
      Runtime runtime{.device = *device, .behaviors = {}};
      const auto unsharded = optim_test::make_parameter(*device, {.shape = c.shape, .recipe = c.recipe});
      const auto stored_bytes = [&] {
        std::vector<std::vector<std::uint8_t>> bytes;
        for (const QuantizedOrientation* half : {&unsharded->quantized.rowwise(), &unsharded->quantized.columnwise()})
          if (*half)
            for (const Tensor* tensor : {&half->data, &half->scale_inv})
              bytes.push_back(support::bytes_of(*device, *tensor));
        return bytes;
      };
      auto expected = stored_bytes();
      Mesh mesh(group, {.replicas = 1, .shards = 2});
      ShardedParameter sharded(runtime, *unsharded, mesh);
      const bool refused = !sharded.refusal().empty();
      EXPECT_EQ(refused, c.shape[0] == 129) << sharded.refusal();  // 65 rows and 64 would split a block of 32 columns
      if (refused) return;
      std::vector<GatherPart> parts;
      sharded.begin_gather(runtime, {.rowwise = true, .columnwise = true}, parts);
      mesh.shard_group().all_gather(parts, "w");
      sharded.end_gather(runtime);
      const auto gathered = stored_bytes();
      expected.resize(gathered.size());  // for square blocks the column-wise orientation is made, not gathered
      EXPECT_EQ(gathered, expected) << c.recipe;
    });
  }
}

}  // namespace
}  // namespace fp8lab
