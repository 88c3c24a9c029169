// A model of which every rank has all parameters: its buckets, and the gradients that they average.

#include "fsdp/replication.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fsdp/sharded_run.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;

RunConfig of_replicas() {
  RunConfig config;
  config.recipe = "bf16";
  config.eight_bit_weights = false;
  config.deferred_init = false;
  config.layers = 2;
  config.config = small_block(64);
  return config;
}

std::int64_t bytes_of_gradients(const Model& model) {
  std::int64_t bytes = 0;
  for (const Parameter* parameter : model.parameters())
    bytes += parameter->spec.shape.numel() * static_cast<std::int64_t>(size_bytes(parameter->spec.dtype));
  return bytes;
}

std::vector<std::vector<float>> read_gradients(ModelRun& run) {
  std::vector<std::vector<float>> out;
  for (const Parameter* parameter : run.model().parameters()) out.push_back(run.device().read(parameter->grad));
  return out;
}

// A quotient is rounded, and the sum is rounded again.
TEST(Replication, GradientsAreTheMeanOverRanks_InEveryBucket) {
  constexpr int kRanks = 3;
  std::vector<std::vector<std::vector<float>>> local(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ModelRun alone(of_replicas());
    alone.step(1000 * rank);
    local[static_cast<std::size_t>(rank)] = read_gradients(alone);
  }
  on_ranks(kRanks, [&](ProcessGroup& world) {
    ModelRun run(of_replicas(), world);
    const std::int64_t all = bytes_of_gradients(run.model());
    Replication replication(run.runtime(), run.model(), run.ranks(), {.first_bytes = 1, .bytes = all / 4});
    run.step(1000 * world.rank());
    replication.reduce_gradients(run.runtime());
    const std::vector<std::vector<float>> seen = read_gradients(run);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      SCOPED_TRACE(run.model().parameters()[i]->name);
      for (std::size_t k = 0; k < seen[i].size(); ++k) {
        double mean = 0.0, largest = 0.0;
        for (const auto& of_rank : local) {
          mean += of_rank[i][k] / double{kRanks};
          largest = std::max<double>(largest, std::abs(of_rank[i][k]));
        }
        ASSERT_TRUE(std::abs(seen[i][k] - mean) <= 2 * 0x1p-8 * largest) << k << ": " << seen[i][k] << ", " << mean;
      }
    }
    EXPECT_GT(run.ranks().traffic().of(CollectiveKind::kAllReduce).collectives, 4);
    EXPECT_EQ(run.ranks().traffic().of(CollectiveKind::kAllReduce).payload_bytes, all);
  });
}

TEST(Replication, BucketsLiveNextToGradients_OneIsClosedByTheGradientThatFillsIt) {
  on_ranks(2, [](ProcessGroup& world) {
    ModelRun run(of_replicas(), world);
    const std::int64_t all = bytes_of_gradients(run.model()), before = run.device().ledger().live_bytes();
    const auto reductions = [&](const BucketSizes& sizes) {
      Replication replication(run.runtime(), run.model(), run.ranks(), sizes);
      EXPECT_EQ(run.device().ledger().live_bytes() - before, all);
      const Traffic earlier = run.ranks().traffic();
      run.step(world.rank());
      replication.reduce_gradients(run.runtime());
      run.model().zero_grad();
      return run.ranks().traffic().of(CollectiveKind::kAllReduce).collectives -
             earlier.of(CollectiveKind::kAllReduce).collectives;
    };
    EXPECT_EQ(reductions({}), 1) << "less than 1 MiB";
    EXPECT_EQ(reductions({.first_bytes = 1, .bytes = all}), 2) << "the last layer's last parameter, then the others";
    EXPECT_EQ(reductions({.first_bytes = 1, .bytes = 1}), std::ssize(run.model().parameters()));
  });
}

TEST(Replication, OfAParameterWithoutAGradient_NamesIt) {
  on_ranks(1, [](ProcessGroup& world) {
    ModelRun run(of_replicas(), world);
    Replication replication(run.runtime(), run.model(), run.ranks());
    run.step();
    run.model().parameters().front()->grad = {};
    const std::string error = support::error_of([&] { replication.reduce_gradients(run.runtime()); });
    EXPECT_NE(error.find("backward left layers[0]"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace fp8lab
