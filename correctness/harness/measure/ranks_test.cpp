#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/measure/measure.h"
#include "support/cells.h"
#include "support/error_of.h"
#include "support/recipe_names.h"

// Cells that train over many ranks.
namespace fp8lab {
namespace {

CellConfig cell_of(std::string_view recipe, int ranks, const std::string& mesh = "", bool quantized_weights = false) {
  CellConfig cell = support::small_cell(recipe);
  cell.ranks = ranks;
  cell.mesh = mesh;
  cell.training.quantized_weights = quantized_weights;
  if (quantized_weights) cell.training.master_weights = "f32";
  cell.measure = {"parity", "memory", "traffic"};
  return cell;
}

double value(const ArmResult& result, const std::string& metric) {
  const auto found = result.metrics.find(metric);
  if (found == result.metrics.end() || !found->second.value) {
    ADD_FAILURE() << metric << " is absent: " << (found == result.metrics.end() ? "" : found->second.reason);
    return std::nan("");
  }
  return *found->second.value;
}

std::string reason(const ArmResult& result, const std::string& metric) {
  const MetricValue& figure = result.metrics.at(metric);
  return figure.value ? "present" : figure.reason;
}

using support::error_of;

struct Case {
  const char* recipe;
  bool quantized_weights;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.recipe << (c.quantized_weights ? " FP8 weights" : ""); }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* recipe : support::recipe_names())
    for (const bool quantized_weights : {false, true}) all.push_back({recipe, quantized_weights});
  return all;
}

class Ranks : public ::testing::TestWithParam<Case> {
 protected:
  CellConfig cell(int ranks, const std::string& mesh = "") const {
    return cell_of(GetParam().recipe, ranks, mesh, GetParam().quantized_weights);
  }
};

// Figures over ranks are not the figures of rank 0: the last rank in the last replica reports planted values.
TEST(PlantedFaults, ShowInEveryFigureOverRanks) {
  for (const char* mesh : {"3", "2x2"}) {
    CellConfig cell = cell_of("delayed", *mesh == '3' ? 3 : 4, mesh);
    cell.control = Control::kPlanted;
    cell.training.checkpoint = Recompute::kFull;
    const ArmResult before = measure_arm(cell, Arm::kBefore), after = measure_arm(cell, Arm::kAfter);
    for (const char* metric : {"parity.ranks_equal", "parity.scales_equal", "parity.gathered_equals_unsharded"}) {
      EXPECT_EQ(value(before, metric), 0.0) << metric << ' ' << mesh;
      EXPECT_EQ(value(after, metric), 1.0) << metric << ' ' << mesh;
    }
    EXPECT_EQ(value(before, "parity.bitwise_equal"), 0.0) << mesh;
    EXPECT_EQ(value(before, "parity.shards_moved"), 0.0) << mesh;
    EXPECT_GT(value(before, "parity.grad_norm_ratio"), 1.2 * value(after, "parity.grad_norm_ratio")) << mesh;
    EXPECT_GE(value(before, "parity.twin_faults"), 2.0) << mesh;
    EXPECT_EQ(value(after, "parity.twin_faults"), 0.0) << mesh;
    const std::string differs = before.metrics.at("parity.scales_equal").reason;
    EXPECT_NE(differs.find(*mesh == '3' ? "rank 2" : "rank 3"), std::string::npos) << differs;
  }
}

TEST_P(Ranks, TrainToTheSameBitsEveryTime) {
  const ArmResult once = measure_arm(cell(3), Arm::kAfter), again = measure_arm(cell(3), Arm::kAfter);
  EXPECT_EQ(once.values_hash.size(), 16u);
  EXPECT_EQ(once.values_hash, again.values_hash);
  EXPECT_EQ(once.sequence_hash, again.sequence_hash);
  EXPECT_NE(once.values_hash, measure_arm(cell(2), Arm::kAfter).values_hash);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Ranks, ::testing::ValuesIn(cases()), [](const auto& test) {
  return std::string(test.param.recipe) + (test.param.quantized_weights ? "_eight_bits" : "");
});

TEST(Cells, EveryStepHasDifferentTokens) {
  CellConfig cell = support::small_cell("bf16");
  cell.training.optimizer = "none";
  cell.measure = {"parity"};
  const std::vector<double> losses = measure_arm(cell, Arm::kAfter).losses;
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[1], losses[2]);
}

// NaNs can have equal bits, but they are not equal results.
TEST(Twin, IsNotEqualIfLossesAreNan) {
  CellConfig cell = support::small_cell("current");
  cell.training.quantized_weights = true;
  cell.training.master_weights = "f32";
  cell.training.steps = 3;
  cell.measure = {"twin", "parity"};
  const ArmResult sound = measure_arm(cell, Arm::kAfter);
  EXPECT_EQ(value(sound, "twin.losses_equal"), 1.0);
  EXPECT_EQ(value(sound, "twin.loss_difference"), 0.0);
  cell.training.learning_rate = 1e30;
  const ArmResult broken = measure_arm(cell, Arm::kAfter);
  EXPECT_FALSE(std::isfinite(broken.losses.back()));
  EXPECT_EQ(value(broken, "twin.losses_equal"), 0.0);
  EXPECT_TRUE(std::isinf(value(broken, "twin.loss_difference")));
}

TEST(RanksTogether, RunThousandsOfRanksOnMeta) {
  CellConfig cell = cell_of("delayed", 65536, "64x1024");
  cell.device = "meta";
  cell.measure = {"memory", "traffic"};
  EXPECT_GT(value(measure_arm(cell, Arm::kAfter), "memory.peak_bytes"), 0.0);
}

TEST(RanksTogether, MeasureHostTimeFromTheSecondStepOn) {
  CellConfig cell = cell_of("mxfp8", 4, "", true);
  cell.device = "meta";
  cell.measure = {"host"};
  const ArmResult result = measure_arm(cell, Arm::kAfter);
  EXPECT_GT(value(result, "host.pre_forward_ns"), 0.0);
  EXPECT_EQ(value(result, "host.pre_forward_allocations"), 0.0);
  EXPECT_EQ(value(result, "host.pre_forward_quantizer_copies"), 0.0);
  cell.training.steps = 1;
  EXPECT_NE(reason(measure_arm(cell, Arm::kAfter), "host.pre_forward_ns").find("two steps"), std::string::npos);
}

TEST(Time, ExcludesTheFirstStep) {
  CellConfig cell = cell_of("delayed", 1);
  cell.measure = {"time"};
  const ArmResult three = measure_arm(cell, Arm::kAfter);
  ASSERT_EQ(cell.training.steps, 3);
  for (const char* metric : {"time.step_ms", "time.forward_ms", "time.backward_ms", "time.optimizer_ms"}) {
    const std::vector<double>& samples = three.samples.at(metric);
    ASSERT_EQ(samples.size(), 2u) << metric;
    EXPECT_EQ(value(three, metric), 0.5 * (samples[0] + samples[1])) << metric;
  }
  cell.training.steps = 1;
  EXPECT_EQ(reason(measure_arm(cell, Arm::kAfter), "time.step_ms"), "needs two steps: the first one warms up");
}

// The median of four samples is the mean of the two in the middle. If more are measured than kept, the samples next to
// the median are kept.
TEST(RanksTogether, HostTimeIsTheMedianOfItsSamples) {
  CellConfig cell = cell_of("bf16", 2);
  cell.device = "meta";
  cell.model.layer = "linear";
  cell.measure = {"host"};
  const auto measured = [&](std::int64_t layers, std::int64_t steps) {
    cell.model.layers = layers;
    cell.training.steps = steps;
    return measure_arm(cell, Arm::kAfter);
  };
  const ArmResult few = measured(2, 3);
  const std::vector<double>& four = few.samples.at("host.pre_forward_ns");
  ASSERT_EQ(four.size(), 4u);
  EXPECT_TRUE(std::is_sorted(four.begin(), four.end()));
  EXPECT_EQ(value(few, "host.pre_forward_ns"), (four[1] + four[2]) / 2);

  const ArmResult many = measured(10, 41);
  const std::vector<double>& kept = many.samples.at("host.pre_forward_ns");
  ASSERT_EQ(kept.size(), kMostSamples);
  EXPECT_LE(kept[kMostSamples / 2 - 1], value(many, "host.pre_forward_ns"));
  EXPECT_GE(kept[kMostSamples / 2], value(many, "host.pre_forward_ns"));
}

TEST(RanksTogether, FiguresOfShardsAreAbsentWithoutSharding) {
  CellConfig cell = cell_of("bf16", 1);
  cell.measure = {"parity", "traffic", "host"};
  const ArmResult result = measure_arm(cell, Arm::kAfter);
  for (const char* metric : {"parity.ranks_equal", "parity.gathered_equals_unsharded", "traffic.all_gather_bytes",
                             "traffic.collectives", "host.pre_forward_ns", "host.pre_forward_allocations"})
    EXPECT_EQ(reason(result, metric), "nothing is sharded") << metric;
  EXPECT_EQ(result.values_hash.size(), 16u);
}

TEST(RanksTogether, RankThatFailsEndsTheArmWithOneError) {
  const StartRanks failing = [](const CellConfig& cell, const RankFunction& rank_function) {
    start_ranks_here(cell, [&](ProcessGroup& world) {
      if (world.rank() == 2) fail("the third rank has had enough");
      rank_function(world);
    });
  };
  EXPECT_EQ(error_of([&] { measure_arm_over(failing, cell_of("delayed", 4), Arm::kAfter); }),
            "rank 2: the third rank has had enough");
}

TEST(RanksTogether, WaitForALateRankLessThanTheArmsTimeout) {
  CellConfig cell = cell_of("delayed", 4);
  cell.timeout_s = 1.0;
  std::promise<void> given_up;
  std::once_flag first;
  const StartRanks late = [&](const CellConfig& config, const RankFunction& rank_function) {
    start_ranks_here(config, [&](ProcessGroup& world) {
      if (world.rank() == 1) return given_up.get_future().wait();
      try {
        rank_function(world);
      } catch (...) {
        std::call_once(first, [&] { given_up.set_value(); });
        throw;
      }
    });
  };
  const std::string error = error_of([&] { measure_arm_over(late, cell, Arm::kAfter); });
  EXPECT_NE(error.find("rank 1 did not come"), std::string::npos) << error;
  EXPECT_NE(error.find("within 0.8 s"), std::string::npos) << error;
}

TEST(RanksTogether, MeshThatDoesNotFitIsAnError) {
  const std::string error = error_of([] { measure_arm(cell_of("bf16", 4, "3x2"), Arm::kAfter); });
  EXPECT_NE(error.find("3 x 2"), std::string::npos) << error;
}

}  // namespace
}  // namespace fp8lab
