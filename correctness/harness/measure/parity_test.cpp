#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/measure/arms.h"
#include "harness/measure/cast_counts.h"
#include "harness/measure/compared_run.h"
#include "harness/measure/measure.h"
#include "harness/measure/scores.h"
#include "harness/measure/timeline.h"
#include "ops/prepared_cast.h"
#include "support/cells.h"
#include "support/quantize.h"

// The figures of parity: what distinguishes a run from BF16's, or its sides from each other.
namespace fp8lab {
namespace {

const MetricValue& figure(const ArmResult& result, const std::string& metric) { return result.metrics.at(metric); }

CastCounts counts_of(const std::vector<float>& values, const Shape& shape, const std::string& format,
                     const Orientations& orientations, float scale = 1.0f) {
  const auto device = support::open_poisoned_device();
  const Tensor x = support::make_tensor(*device, shape, DType::kF32, values);
  Quantizer quantizer{
      .format = support::format_named(format), .orientations = orientations, .holder = support::anyone(*device)};
  if (quantizer.format.amax_source == AmaxSource::kHistory) quantizer.scale = support::scalar(*device, scale);
  CastCounter counter;
  device->watch_casts(&counter);
  quantize(*device, x, quantizer);
  device->watch_casts(nullptr);
  quantize(*device, x, quantizer);  // no longer counted
  return counter.counts();
}

void expect_counts(const CastCounts& counts, const CastCounts& expected) {
  EXPECT_EQ(counts.values, expected.values);
  EXPECT_EQ(counts.clipped, expected.clipped);
  EXPECT_EQ(counts.underflowed, expected.underflowed);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// E4M3 ends at 448 (the next step would be 480), and its smallest value is 2^-9. E5M2 ends at 57344, before 65536, and
// its smallest value is 2^-16. Ties go to the even code of the two.
TEST(CastCounts, CountClippedAndUnderflowedValues) {
  const std::vector<float> e4m3{464.0f, 464.1f, -1000.0f, kInfinity, kNan, 0.0f, -0.0f, 0x1p-10f, 0x1.002p-10f, -1e-9f};
  expect_counts(counts_of(e4m3, {2, 5}, "delayed_e4m3", {true, false}), {.values = 10, .clipped = 3, .underflowed = 2});
  const std::vector<float> e5m2{61440.0f, 61441.0f, -1e9f, 464.1f, 0x1p-17f, 0x1.002p-17f};
  expect_counts(counts_of(e5m2, {2, 3}, "delayed_e5m2", {true, false}), {.values = 6, .clipped = 2, .underflowed = 1});
  const std::vector<float> halved{928.0f, 928.2f, 0x1p-9f};
  expect_counts(counts_of(halved, {1, 3}, "delayed_e4m3", {true, false}, 0.5f),
                {.values = 3, .clipped = 1, .underflowed = 1});
}

TEST(CastCounts, CountEveryOrientationThatHasItsOwnScales) {
  std::vector<float> values(128 * 128, 0.0f);
  values[0] = 500.0f;
  values[1] = 1e-6f;  // underflows under its row's scale, not under its column's
  for (const char* format : {"delayed_e4m3", "block_128x128_f32"})
    EXPECT_EQ(counts_of(values, {128, 128}, format, {true, true}).values, 128 * 128) << format;
  expect_counts(counts_of(values, {128, 128}, "block_1x128_f32", {true, true}),
                {.values = 2 * 128 * 128, .clipped = 0, .underflowed = 1});
  // The floor of 500 is 256: both orientations clip the value.
  expect_counts(counts_of(values, {128, 128}, "mxfp8_floor", {true, true}),
                {.values = 2 * 128 * 128, .clipped = 2, .underflowed = 1});
  expect_counts(counts_of(values, {128, 128}, "mxfp8_rceil", {false, true}),
                {.values = 128 * 128, .clipped = 0, .underflowed = 0});
  expect_counts(counts_of(values, {128, 128}, "block_1x128_f32", {false, true}),
                {.values = 128 * 128, .clipped = 0, .underflowed = 0});
}

// In several parts and tiles, with edges of both: the same counts as a plain loop over the same values.
TEST(CastCounts, LargeTensorCountsAsManySmallOnes) {
  constexpr std::int64_t kRows = 2080, kCols = 4128, kBlock = 32;
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(1.0f + static_cast<float>(i % 97) / 97.0f, -static_cast<int>(i % 23));
  const CastCounts large = counts_of(values, {kRows, kCols}, "mxfp8_floor", {true, true});
  CastCounts sum;  // sum over row blocks, whose blocks of scales equal the large tensor's
  for (std::int64_t row = 0; row < kRows; row += kBlock) {
    const auto begin = values.begin() + row * kCols;
    sum += counts_of({begin, begin + kBlock * kCols}, {kBlock, kCols}, "mxfp8_floor", {true, true});
  }
  EXPECT_GT(large.clipped, 0);
  EXPECT_GT(large.underflowed, 0);
  expect_counts(large, sum);
  EXPECT_NEAR(large.signal / sum.signal, 1.0, 1e-12);
  EXPECT_NEAR(large.noise / sum.noise, 1.0, 1e-12);
}

TEST(CastCounts, KnowWhetherACastWasMissed) {
  const auto device = support::open_poisoned_device();
  const Tensor x = support::make_tensor(*device, {1, 4}, DType::kF32, {1.0f, 2.0f, 3.0f, 4.0f});
  Quantizer quantizer{.format = support::format_named("delayed_e4m3"),
                      .orientations = {true, false},
                      .scale = support::scalar(*device, 1.0f),
                      .holder = support::anyone(*device)};
  CastCounter counter;
  device->watch_casts(&counter);
  quantize(*device, x, quantizer);
  EXPECT_FALSE(counter.missed());
  prepare_unstored_cast(*device, "test", x.spec(), quantizer);
  EXPECT_TRUE(counter.missed());
}

// Current scaling stores what it casts, so the casts of the run itself are counted. With measure `time`, under which
// nothing may disturb the run, the casts of a further run are counted.
TEST(UnbalancedBytes, AreZeroUntilAFigureContradictsTheEvents) {
  Ledger ledger;
  ledger.record_timeline(true);
  const HolderId weight = ledger.holder(HolderKind::kParameter, "w"),
                 local = ledger.holder(HolderKind::kWorkspace, "w"), saved = ledger.holder(HolderKind::kSavedSlot, "w");
  ledger.on_allocate(100, weight);
  for (int step = 0; step < 3; ++step) {
    ledger.record_timeline(step != 1);  // a pause
    ledger.set_phase(PhaseKind::kForward, step);
    ledger.on_allocate(50, local);
    ledger.on_transfer(50, local, saved);
    ledger.mark("end_of_forward");
    ledger.set_phase(PhaseKind::kOptimizer, step);
    if (step != 1) ledger.on_free(50, saved);
  }
  ledger.on_free(50, saved);
  EXPECT_EQ(unbalanced_bytes(ledger), 0);

  Ledger recorded;
  recorded.record_timeline(true);
  const HolderId held = recorded.holder(HolderKind::kWorkspace, "w");
  recorded.on_allocate(70, held);
  recorded.on_free(30, held);
  EXPECT_EQ(unbalanced_bytes(recorded), 0);
  recorded.reset_peak();
  EXPECT_EQ(unbalanced_bytes(recorded), 30) << "a peak of 40, and the events had 70";
}

TEST(Parity, CastsAreTheSameInTheRunAndInAFurtherOne) {
  for (const char* recipe : {"current", "block", "mxfp8"})
    for (const Recompute checkpoint : {Recompute::kNone, Recompute::kFull}) {
      CellConfig cell = support::small_cell(recipe);
      cell.training.steps = 3;
      cell.training.checkpoint = checkpoint;
      cell.measure = {"parity"};
      const ArmResult counted = measure_arm(cell, Arm::kAfter);
      cell.measure = {"parity", "time"};
      const ArmResult further = measure_arm(cell, Arm::kAfter);
      ASSERT_FALSE(counted.casts.empty());
      ASSERT_EQ(counted.casts.size(), further.casts.size()) << recipe;
      for (std::size_t i = 0; i < counted.casts.size(); ++i) {
        EXPECT_EQ(counted.casts[i].tensor, further.casts[i].tensor);
        EXPECT_EQ(counted.casts[i].sqnr_db, further.casts[i].sqnr_db) << recipe << ": " << counted.casts[i].tensor;
      }
      for (const char* metric : {"parity.values_cast", "parity.clip_fraction", "parity.underflow_fraction"})
        EXPECT_EQ(figure(counted, metric).value, figure(further, metric).value) << recipe << ": " << metric;
    }
}

TEST(Parity, BaselineOfCellsThatDifferInTheirRecipeIsTrainedOnce) {
  CellConfig cell = support::small_cell("current");
  const std::shared_ptr<const ComparedRun> first = compared_run(cell, Arm::kBf16, nullptr);
  CellConfig other = support::small_cell("mxfp8");
  other.id = "another";
  other.fix = "strip_scale_padding";
  other.training.quantized_weights = true;
  EXPECT_EQ(compared_run(other, Arm::kBf16, nullptr), first);
  other.training.seed += 1;
  EXPECT_NE(compared_run(other, Arm::kBf16, nullptr), first);
  EXPECT_NE(compared_run(other, Arm::kBf16, nullptr)->losses, first->losses);
  cell.training.deterministic = false;
  EXPECT_NE(compared_run(cell, Arm::kBf16, nullptr), first) << "it may have other bits";
  const CellConfig as_run = as_bf16(cell);
  TrainingRun again(as_run, Behaviors{}, make_recipe("bf16"));
  again.keep_values(true);
  again.train();
  EXPECT_EQ(again.losses(), first->losses);
  EXPECT_EQ(again.weights(), first->weights);
  EXPECT_EQ(again.values().gradients, first->values.gradients);
}

TEST(Parity, TheFixedRunIsThatOfTheAfterArmIfTheProcessHasIt) {
  CellConfig cell = support::small_cell("current");
  cell.measure = {"parity"};
  cell.ranks = 2;
  cell.training.seed = 4321;
  cell.training.quantized_weights = true;
  cell.training.master_weights = Master::kF32;
  cell.fix = "share_amax_over_shards";
  const ArmResult trained = measure_arm(cell, Arm::kBefore);
  cell.training.seed += 1;
  measure_arm(cell, Arm::kAfter);
  const ArmResult taken = measure_arm(cell, Arm::kBefore);
  cell.training.deterministic = false;
  const ArmResult again = measure_arm(cell, Arm::kBefore);
  EXPECT_EQ(figure(trained, "parity.bitwise_equal").value, 0.0);
  for (const auto& [name, metric] : taken.metrics) EXPECT_EQ(metric.value, again.metrics.at(name).value) << name;
  cell.training.deterministic = true;
  cell.fix = "write_back_list_updates";  // which does nothing to fused Adam
  EXPECT_EQ(figure(measure_arm(cell, Arm::kBefore), "parity.bitwise_equal").value, 1.0);
}

// A rank that has its baseline's result trains with a rank that lacks it, which would otherwise wait for it.
TEST(Parity, RanksTrainABaselineTogether) {
  CellConfig cell = support::small_cell("current");
  cell.ranks = 2;
  cell.timeout_s = 60;
  start_ranks_here(cell, [&](ProcessGroup& world) {
    const std::shared_ptr<const ComparedRun> known = compared_run(cell, Arm::kBf16, &world);
    EXPECT_EQ(compared_run(cell, Arm::kBf16, &world), known);
    CellConfig mine = cell;
    mine.training.seed += static_cast<std::uint64_t>(world.rank());  // rank 1 does not know it
    const std::shared_ptr<const ComparedRun> trained = compared_run(mine, Arm::kBf16, &world);
    EXPECT_NE(trained, known);
  });
}

TEST(Parity, ReportsTheFractionsOfClippedAndUnderflowedValues) {
  CellConfig cell = support::small_cell("delayed");
  cell.measure = {"parity"};
  cell.training.steps = 1;  // its scale is 1, under which gradients of 1e-4 underflow
  const ArmResult first = measure_arm(cell, Arm::kAfter);
  EXPECT_EQ(figure(first, "parity.clip_fraction").value, 0.0);
  EXPECT_GT(figure(first, "parity.underflow_fraction").value.value(), 0.1);
  cell.training.recipe = "current";
  for (const int ranks : {1, 2}) {
    cell.ranks = ranks;
    const ArmResult result = measure_arm(cell, Arm::kAfter);
    EXPECT_EQ(figure(result, "parity.clip_fraction").value, 0.0);
    EXPECT_LT(figure(result, "parity.underflow_fraction").value.value(), 0.01);
  }
  EXPECT_EQ(figure(measure_arm(cell, Arm::kBf16), "parity.clip_fraction").reason, "nothing is cast to eight bits");
}

// A cast to E4M3 under the tensor's own scale leaves noise 31.5 dB below a Gaussian signal, one to E5M2 25.5 dB;
// activations and gradients are not Gaussian.
TEST(Parity, ReportsCastsByTensorAndStep) {
  CellConfig cell = support::small_cell("current");
  cell.measure = {"parity"};
  cell.training.steps = 9;
  std::map<std::string, CastSeries> alone;
  for (const int ranks : {1, 2}) {
    cell.ranks = ranks;
    const ArmResult result = measure_arm(cell, Arm::kAfter);
    ASSERT_EQ(result.casts.size(), 4u * 3u);  // four products
    for (const CastSeries& series : result.casts) {
      EXPECT_EQ(series.steps, (std::vector<std::int64_t>{0, 1, 3, 4, 6, 8})) << series.tensor;
      ASSERT_EQ(series.sqnr_db.size(), series.steps.size()) << series.tensor;
      const double expected = series.tensor.ends_with(" gradient") ? 25.5 : 31.5;
      for (const std::optional<double>& db : series.sqnr_db) EXPECT_NEAR(db.value(), expected, 2.0) << series.tensor;
      alone.emplace(series.tensor, series);
    }
    EXPECT_EQ(alone.size(), 12u) << "ranks cast the same tensors";
  }
  for (const char* tensor : {"layers[0].qkv input", "layers[0].mlp.fc1 weight", "layers[0].mlp.fc2 gradient"})
    EXPECT_TRUE(alone.contains(tensor)) << tensor;
  EXPECT_TRUE(measure_arm(cell, Arm::kBf16).casts.empty());
}

TEST(Twin, IsAbsentWhereCorrectRunsDiffer) {
  const auto twin_of = [](std::string_view recipe, Master master, std::int64_t micro_batches) {
    CellConfig cell = support::small_cell(recipe);
    cell.measure = {"twin"};
    cell.training.master_weights = master;
    cell.training.quantized_weights = true;
    cell.training.micro_batches = micro_batches;
    return figure(measure_arm(cell, Arm::kAfter), "twin.losses_equal");
  };
  EXPECT_EQ(twin_of("delayed", Master::kF32, 1).value, 1.0);
  EXPECT_EQ(twin_of("mxfp8", Master::kF32, 2).value, 1.0);
  EXPECT_FALSE(twin_of("delayed", Master::kF32, 2).value);
  EXPECT_NE(twin_of("delayed", Master::kF32, 2).reason.find("every micro-batch"), std::string::npos);
  // An optimizer that changes no weight, or whose lists hold FP8 weights without a master.
  const auto optimized_by = [](std::string_view recipe, Optimizer optimizer) {
    CellConfig cell = support::small_cell(recipe);
    cell.measure = {"twin"};
    cell.training.quantized_weights = true;
    cell.training.optimizer = optimizer;
    cell.training.steps = 3;
    return figure(measure_arm(cell, Arm::kAfter), "twin.losses_equal");
  };
  EXPECT_EQ(optimized_by("current", Optimizer::kNone).value, 1.0);
  EXPECT_NE(optimized_by("delayed", Optimizer::kNone).reason.find("without an optimizer"), std::string::npos);
  EXPECT_NE(optimized_by("current", Optimizer::kForeachAdam).reason.find("no master"), std::string::npos);
  EXPECT_FALSE(twin_of("mxfp8", Master::kRemainder, 1).value);
  EXPECT_NE(twin_of("mxfp8", Master::kRemainder, 1).reason.find("ties away from zero"), std::string::npos);
}

TEST(Parity, LayersLeftInBF16CastNothing) {
  CellConfig cell = support::small_cell("mxfp8", "llama", "layernorm_mlp");
  cell.measure = {"parity", "twin"};
  cell.model.layers = 3;
  cell.training.master_weights = "f32";
  cell.training.quantized_weights = true;
  for (const int ranks : {1, 2}) {
    cell.ranks = ranks;
    cell.training.first_layers_bf16 = cell.training.last_layers_bf16 = 0;
    const double all = figure(measure_arm(cell, Arm::kAfter), "parity.values_cast").value.value();
    cell.training.first_layers_bf16 = cell.training.last_layers_bf16 = 1;
    const ArmResult result = measure_arm(cell, Arm::kAfter);
    EXPECT_EQ(figure(result, "parity.values_cast").value, all / 3.0);
    for (const CastSeries& series : result.casts) EXPECT_TRUE(series.tensor.starts_with("layers[1].")) << series.tensor;
    EXPECT_EQ(figure(result, "twin.losses_equal").value, 1.0);
    if (ranks > 1) {
      EXPECT_EQ(figure(result, "parity.gathered_equals_unsharded").value, 1.0);
      EXPECT_EQ(figure(result, "parity.ranks_equal").value, 1.0);
    }
  }
  cell.ranks = 1;
  cell.training.first_layers_bf16 = 3;
  cell.training.last_layers_bf16 = 0;
  const ArmResult none = measure_arm(cell, Arm::kAfter), bf16 = measure_arm(cell, Arm::kBf16);
  EXPECT_EQ(none.losses, bf16.losses);
  EXPECT_EQ(figure(none, "parity.values_cast").value, 0.0);
}

TEST(MeanLossGap, IsTheRelativeDistanceOfTheSecondHalf) {
  std::vector<double> bf16, near, wavy;
  for (int step = 0; step < 40; ++step) {
    bf16.push_back(4.0 - 0.05 * step);
    near.push_back(step < 20 ? 100.0 : 1.002 * bf16.back());
    wavy.push_back(bf16.back() * (step % 10 < 5 ? 1.01 : 0.99));
  }
  const MeanLossGap gap(near, bf16);
  EXPECT_NEAR(gap.value.value(), 0.002, 1e-12);
  EXPECT_NEAR(gap.margin.value(), 0.0, 1e-12);
  const MeanLossGap waves(wavy, bf16);
  // The loss falls, so the five steps above it weigh 0.25 each more than the five below: 0.01 * 2.5 of a sum of 50.5.
  EXPECT_NEAR(waves.value.value(), 0.025 / 50.5, 1e-12);
  EXPECT_GT(waves.margin.value(), 0.005);
  EXPECT_LT(waves.margin.value(), 0.01);
}

TEST(MeanLossGap, IsAbsentWithoutAReasonableComparison) {
  const std::vector<double> few(15, 1.0), zeros(16, 0.0), ones(16, 1.0);
  EXPECT_EQ(MeanLossGap(few, few).reason, "needs 16 steps: the second half has 8 windows");
  EXPECT_FALSE(MeanLossGap(ones, zeros).value);
  EXPECT_EQ(MeanLossGap(ones, ones).value, 0.0);
  std::vector<double> diverged = ones;
  diverged[12] = kNan;
  EXPECT_TRUE(std::isnan(MeanLossGap(diverged, ones).value.value()));
  EXPECT_FALSE(MeanLossGap(ones, diverged).value);
}

TEST(LossProgress, IsThePartOfTheFirstLossThatIsGone) {
  EXPECT_DOUBLE_EQ(LossProgress({4.0, 9.0, 1.0}, {}).value.value(), 0.75);
  EXPECT_DOUBLE_EQ(LossProgress({4.0, 5.0}, {}).value.value(), -0.25);
  EXPECT_DOUBLE_EQ(LossProgress({4.0, 5.0}, {{.step = 0, .loss = 2.0}, {.step = 2, .loss = 1.0}}).value.value(), 0.5)
      << "validations have the same tokens each time";
  EXPECT_EQ(LossProgress({4.0}, {}).reason, "needs two steps");
  EXPECT_EQ(LossProgress({-1.0, -2.0}, {}).reason, "the first loss is -1");
  EXPECT_TRUE(std::isnan(LossProgress({4.0, kNan}, {}).value.value()));
  EXPECT_TRUE(std::isnan(LossProgress({kNan, 1.0}, {}).value.value()));
}

TEST(Parity, SidesThatDifferInWeightsAloneAreNotEqual) {
  CellConfig cell = support::small_cell("mxfp8");
  cell.fix = "write_back_list_updates";
  cell.training.quantized_weights = true;
  cell.training.optimizer = "foreach_adam";
  cell.training.steps = 1;
  cell.measure = {"parity"};
  EXPECT_EQ(figure(measure_arm(cell, Arm::kBefore), "parity.bitwise_equal").value, 0.0);
}

// No gate may let NaN pass: a run whose training diverges is no success.
TEST(Parity, DivergedWeightsAreNotEqual) {
  CellConfig cell = support::small_cell("current", "gpt", "linear");
  cell.measure = {"parity"};
  cell.ranks = 2;
  cell.model.layers = 6;
  cell.training.steps = 4;
  cell.training.learning_rate = 1000.0;
  const ArmResult result = measure_arm(cell, Arm::kAfter);
  ASSERT_TRUE(std::isnan(result.losses.back()));
  EXPECT_LT(figure(result, "parity.weights_moved").value.value(), 1.0);
  EXPECT_TRUE(std::isnan(figure(result, "parity.ranks_equal").value.value()));
  EXPECT_EQ(figure(result, "parity.ranks_equal").reason, "a weight is not finite");
  EXPECT_EQ(figure(result, "parity.loss_gap").reason, "BF16's loss is nan");
}

}  // namespace
}  // namespace fp8lab
