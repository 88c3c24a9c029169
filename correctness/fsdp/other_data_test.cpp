// Ranks with different data: gradients are the mean over the ranks, amaxes the largest of all ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/float16.h"
#include "fsdp/sharded_run.h"
#include "nn/cores/role_scales.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;

using Values = std::vector<float>;

/// The result of a step: gradients by parameter, histories and scales by module.
struct Step {
  float loss = 0.0f;
  std::vector<Values> gradients;
  std::vector<Values> histories;
  std::vector<Values> scales;
};

/// Scales start from 1; under these, gradients vanish until the module behind has an amax of its own.
constexpr int kStepsOverTheSame = 5;

/// A step over the data of rank `data`, after steps over the same data on all ranks, so that all start from the same
/// scales.
Step step_over(ModelRun& run, const RunConfig& config, int data) {
  for (int i = 0; i < kStepsOverTheSame; ++i) {
    run.step();
    run.model().zero_grad();
  }
  Step step;
  step.loss = run.step(data * config.config.tokens());
  Device& device = run.device();
  for (const Parameter* parameter : run.model().parameters())
    step.gradients.push_back(device.read((parameter->local != nullptr ? parameter->local : parameter)->grad));
  const Registry& registry = run.model().registry();
  for (const auto* all : {&registry.forward_scales, &registry.backward_scales})
    for (const RoleScales* scales : *all)
      if (const auto& delayed = scales->delayed()) {
        step.histories.push_back(device.read(delayed->history()));
        step.scales.push_back(device.read(delayed->scales()));
      }
  return step;
}

float as_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

/// Sums in the order of the ranks, rounded once to the type of the reduction; `of(rank)` gives a rank's values.
template <class Of>
Values sum_of(int ranks, DType reduce_dtype, const Of& of) {
  Values sum = of(0);
  for (int rank = 1; rank < ranks; ++rank) {
    const Values next = of(rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  }
  if (reduce_dtype == DType::kBF16)
    for (float& x : sum) x = as_bf16(x);
  return sum;
}

Values mean_gradient(const std::vector<Step>& alone, std::size_t parameter, const MeshShape& mesh, DType reduce_dtype) {
  const auto of_replica = [&](int replica) {
    return sum_of(mesh.shards, reduce_dtype, [&](int shard) {
      return alone[static_cast<std::size_t>(replica * mesh.shards + shard)].gradients[parameter];
    });
  };
  Values mean = mesh.replicas == 1 ? of_replica(0) : sum_of(mesh.replicas, reduce_dtype, of_replica);
  for (float& x : mean) x = as_bf16(x * (1.0f / static_cast<float>(mesh.ranks())));
  return mean;
}

/// Element by element over the ranks' runs: the value that `better(a, b)` prefers.
template <class Better>
Values most(const std::vector<Step>& alone, std::vector<Values> Step::* values, std::size_t module,
            const Better& better) {
  Values out = (alone.front().*values)[module];
  for (const Step& step : alone)
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float other = (step.*values)[module][i];
      if (better(other, out[i])) out[i] = other;
    }
  return out;
}

class OtherData : public ::testing::TestWithParam<const char*> {
 protected:
  RunConfig config() const {
    RunConfig config;
    config.recipe = GetParam();
    config.config = small_block(make_recipe(config.recipe).rows_multiple > 32 ? 256 : 64);
    config.config.fp8_attention = config.recipe == "delayed";
    return config;
  }
};

TEST_P(OtherData, RanksGetTheMeanGradientAndTheLargestAmaxes) {
  struct Case {
    MeshShape mesh;
    DType reduce_dtype;
  };
  RunConfig config = this->config();
  for (const Case& one :
       {Case{{.replicas = 1, .shards = 2}, DType::kBF16}, Case{{.replicas = 1, .shards = 3}, DType::kBF16},
        Case{{.replicas = 1, .shards = 3}, DType::kF32}, Case{{.replicas = 2, .shards = 2}, DType::kBF16},
        Case{{.replicas = 2, .shards = 2}, DType::kF32}}) {
    const MeshShape mesh = one.mesh;
    const DType reduce_dtype = one.reduce_dtype;
    SCOPED_TRACE(testing::Message() << mesh.replicas << " x " << mesh.shards << " ranks, reduction in "
                                    << name(reduce_dtype));
    config.reduce_dtype = reduce_dtype;
    std::vector<Step> alone;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      ModelRun run(config);
      alone.push_back(step_over(run, config, rank));
    }
    for (std::size_t i = 0; i < alone[0].gradients.size(); ++i)
      ASSERT_NE(alone[0].gradients[i], alone[1].gradients[i]) << "the data differ, and the gradients do not";
    for (std::size_t i = 0; i < alone[0].histories.size(); ++i)
      ASSERT_NE(alone[0].histories[i], alone[1].histories[i]) << "the data differ, and the amaxes do not";
    const DType other = reduce_dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
    if (mesh.ranks() > 2) {  // the sum of two BF16 values is rounded once in either type
      EXPECT_NE(mean_gradient(alone, 0, mesh, reduce_dtype), mean_gradient(alone, 0, mesh, other));
    }
    on_ranks(mesh.ranks(), [&](ProcessGroup& world) {
      ModelRun run(config, world, mesh);
      const Step step = step_over(run, config, world.rank());
      EXPECT_EQ(step.loss, alone[static_cast<std::size_t>(world.rank())].loss);
      for (std::size_t i = 0; i < step.gradients.size(); ++i) {
        const Parameter& parameter = *run.model().parameters()[i];
        const RowSplit split(dim0(parameter.spec.shape), mesh.shards);
        const std::int64_t row = row_elems(parameter.spec.shape);
        const Values mean = mean_gradient(alone, i, mesh, reduce_dtype);
        const int shard = world.rank() % mesh.shards;
        EXPECT_EQ(step.gradients[i],
                  Values(mean.begin() + split.begin(shard) * row, mean.begin() + split.begin(shard + 1) * row))
            << parameter.name << " on rank " << world.rank();
      }
      ASSERT_EQ(step.histories.size(), alone[0].histories.size());
      for (std::size_t i = 0; i < step.histories.size(); ++i) {
        EXPECT_EQ(step.histories[i], most(alone, &Step::histories, i, std::greater<>()));
        EXPECT_EQ(step.scales[i], most(alone, &Step::scales, i, std::less<>()));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, OtherData, ::testing::ValuesIn(support::recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fp8lab
