// Padding of uneven shards must reach no optimizer: with NaN in all of it, norms, states, amaxes and new weights are
// the same.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "fsdp/padded_shards.h"
#include "optim/adam.h"
#include "optim/foreach_optimizers.h"
#include "optim/weight_average.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::uneven;

using PaddedCase = std::tuple<const char*, int>;
class PaddingOfShards : public ::testing::TestWithParam<PaddedCase> {};

TEST_P(PaddingOfShards, ReachesNeitherAdamNorTheGradientNorm) {
  const auto& [recipe, ranks] = GetParam();
  fsdp_test::on_ranks(ranks, [&, recipe = recipe, ranks = ranks](ProcessGroup& world) {
    ModelRun clean(uneven(recipe), world, {.replicas = 1, .shards = ranks}),
        poisoned(uneven(recipe), world, {.replicas = 1, .shards = ranks});
    const auto options = [](ModelRun& run) {
      return AdamOptions{.learning_rate = 1e-2,
                         .master = MasterWeights::kF32,
                         .exp_avg = DType::kE4M3,
                         .exp_avg_sq = DType::kF16,
                         .max_grad_norm = 1e-3,
                         .norm_group = &run.mesh().shard_group()};
    };
    Adam clean_adam(clean.model().parameters(), options(clean)),
        poisoned_adam(poisoned.model().parameters(), options(poisoned));
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(clean.step(world.rank()), poisoned.step(world.rank()));
      fsdp_test::poison(poisoned);
      clean_adam.step(clean.runtime());
      poisoned_adam.step(poisoned.runtime());
      for (std::size_t i = 0; i < clean_adam.state().size(); ++i) {
        const Parameter &a = *clean.model().parameters()[i]->local, &b = *poisoned.model().parameters()[i]->local;
        const AdamState &of_a = clean_adam.state()[i], &of_b = poisoned_adam.state()[i];
        EXPECT_EQ(of_a.exp_avg.numel(), a.spec.shape.numel()) << "states have no padding";
        EXPECT_EQ(bytes_of(clean.device(), a.value), bytes_of(poisoned.device(), b.value)) << a.name;
        EXPECT_EQ(bytes_of(clean.device(), a.quantized), bytes_of(poisoned.device(), b.quantized)) << a.name;
        for (const auto& [x, y] : {std::pair(&of_a.master, &of_b.master), std::pair(&of_a.exp_avg, &of_b.exp_avg),
                                   std::pair(&of_a.exp_avg_sq, &of_b.exp_avg_sq)})
          EXPECT_EQ(bytes_of(clean.device(), *x), bytes_of(poisoned.device(), *y)) << a.name;
      }
      clean.model().zero_grad();
      poisoned.model().zero_grad();
    }
  });
}

TEST_P(PaddingOfShards, ReachesNeitherListOperationsNorAverages) {
  const auto& [recipe, ranks] = GetParam();
  fsdp_test::on_ranks(ranks, [&, recipe = recipe, ranks = ranks](ProcessGroup& world) {
    ModelRun clean(uneven(recipe), world, {.replicas = 1, .shards = ranks}),
        poisoned(uneven(recipe), world, {.replicas = 1, .shards = ranks});
    ForeachAdam clean_adam(clean.model().parameters(), {.learning_rate = 1e-2}),
        poisoned_adam(poisoned.model().parameters(), {.learning_rate = 1e-2});
    WeightAverage clean_average(clean.runtime(), clean.model().parameters(), 0.5),
        poisoned_average(poisoned.runtime(), poisoned.model().parameters(), 0.5);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(clean.step(world.rank()), poisoned.step(world.rank()));
      fsdp_test::poison(poisoned);
      clean_adam.step(clean.runtime());
      poisoned_adam.step(poisoned.runtime());
      clean_average.update(clean.runtime());
      poisoned_average.update(poisoned.runtime());
      for (std::size_t i = 0; i < clean.model().parameters().size(); ++i) {
        EXPECT_EQ(bytes_of(clean.device(), clean_average.value(i)),
                  bytes_of(poisoned.device(), poisoned_average.value(i)));
        EXPECT_EQ(bytes_of(clean.device(), clean_average.quantized(i)),
                  bytes_of(poisoned.device(), poisoned_average.quantized(i)));
        const Parameter &a = *clean.model().parameters()[i]->local, &b = *poisoned.model().parameters()[i]->local;
        EXPECT_EQ(bytes_of(clean.device(), a.value), bytes_of(poisoned.device(), b.value)) << a.name;
        EXPECT_EQ(bytes_of(clean.device(), a.quantized), bytes_of(poisoned.device(), b.quantized)) << a.name;
      }
      clean.model().zero_grad();
      poisoned.model().zero_grad();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Matrix, PaddingOfShards,
                         ::testing::Combine(::testing::ValuesIn(support::recipe_names()), ::testing::Values(2, 5, 7)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace fp8lab
