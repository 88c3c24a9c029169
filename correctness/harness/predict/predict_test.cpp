#include "harness/predict/predict.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "fixes/fixes.h"
#include "harness/cell/keys.h"
#include "harness/measure/measure.h"
#include "harness/predict/predicted.h"
#include "nn/layer_table.h"

namespace fp8lab {
namespace {

using predict_test::agrees;
using predict_test::can_run;
using predict_test::Draw;
using predict_test::draw_bf16_layers;
using predict_test::draw_frozen_layers;
using predict_test::draw_language;
using predict_test::draw_sizes;
using predict_test::ends_in_an_error;

void draw_training(Draw& draw, TrainingConfig& training) {
  training.steps = draw.upto(3);
  training.optimizer = draw.of({"none", "adam"});
  training.loss = draw.of({"sum", "mse"});
  training.param_dtype = draw.of({"bf16", "bf16", "f32"});
  training.keep_loss = draw.upto(4) > 1;
  training.fused_quantize = draw.chance();
  training.micro_batches = draw.of<std::int64_t>({1, 1, 2, 3});
  training.validation_batches = draw.of<std::int64_t>({0, 0, 1, 3});
  training.validate_every = training.validation_batches > 0 ? draw.of<std::int64_t>({0, 1, 2}) : 0;
  training.cache_weights = draw.chance();
  if (training.recipe == "delayed" && draw.chance()) training.recipe_options.amax_history_length = draw.upto(64);
  if (training.recipe == "delayed" && draw.chance()) training.initial_history_length = draw.upto(64);
}

/// Visits every layer, form, recipe, architecture and training option, each with several draws of the other keys, up to
/// the first failure.
template <class Visit>
void for_each_cell(int draws, Visit visit) {
  Draw draw;
  CellConfig cell;
  cell.device = "meta";
  for (const LayerRow& layer : layer_table())
    for (const LayerForm& form : form_table())
      for (const RecipeRow& recipe : recipes())
        for (const ArchProfile& arch : arch_profiles())
          for (const char* checkpoint : {"none", "full", "selective", "selective_alternate"})
            for (const char* op_fuser : {"none", "mlp"})
              for (const bool fp8_attention : {false, true})
                for (int i = 0; i < draws; ++i) {
                  cell.arch = arch.name;
                  cell.model = {.layer = std::string(layer.name), .form = std::string(form.name), .op_fuser = op_fuser};
                  cell.training = {};
                  cell.training.recipe = recipe.name;
                  cell.training.checkpoint = checkpoint;
                  cell.training.fp8_attention = fp8_attention;
                  draw_sizes(draw, std::string(recipe.name), cell.model);
                  draw_training(draw, cell.training);
                  cell.training.checkpoint_every =
                      cell.training.checkpoint != Recompute::kNone ? std::min(cell.model.layers, draw.upto(3)) : 1;
                  draw_bf16_layers(draw, cell);
                  draw_language(draw, cell);
                  draw_frozen_layers(draw, cell);
                  cell.training.fp8_attention_backward = !fp8_attention || draw.upto(3) > 1;
                  cell.training.fp8_mha = fp8_attention && cell.training.fp8_attention_backward && draw.chance();
                  if (can_run(cell) && !testing::Test::HasFailure()) visit(cell);
                }
}

CellConfig issue_1935() {
  CellConfig cell;
  cell.device = "meta";
  cell.fix = "release_attention_tensors";
  cell.model = {.layer = "transformer_layer",
                .form = "gpt",
                .layers = 3,
                .hidden = 2048,
                .heads = 16,
                .ffn = 6144,
                .seq = 1048,
                .batch = 32};
  cell.training.optimizer = "adam";
  cell.training.recipe = "delayed";
  cell.training.recipe_options.amax_history_length = 32;
  cell.training.fp8_attention = true;
  return cell;
}

CellConfig llama_3(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn) {
  CellConfig cell;
  cell.device = "meta";
  cell.fix = "release_fuser_tensors";
  cell.model = {.layer = "transformer_layer",
                .form = "llama",
                .layers = layers,
                .hidden = hidden,
                .heads = heads,
                .kv_heads = 8,
                .ffn = ffn,
                .seq = 8192,
                .op_fuser = "mlp"};
  cell.training.optimizer = "adam";
  cell.training.recipe = "delayed";
  return cell;
}

double retained(const CellConfig& cell, Arm arm) { return predict(cell, arm).at("memory.retained_bytes"); }

TEST(Predict, EqualsTheMeasurementOfEveryConfiguration) {
  int runs = 0;
  std::size_t next_fix = 0;
  for_each_cell(6, [&](CellConfig& cell) {
    ASSERT_TRUE(agrees(cell, Arm::kAfter));
    ASSERT_TRUE(agrees(cell, Arm::kBf16));
    for (int i = 0; i < 4; ++i) {
      cell.fix = fixes()[next_fix++ % fixes().size()].name;
      const Estimate formulas = estimate(cell, Arm::kBefore);
      if (formulas.figures.empty())
        EXPECT_TRUE(ends_in_an_error(cell));
      else
        ASSERT_TRUE(agrees(cell, Arm::kBefore, formulas));
    }
    cell.fix = "";
    runs += 6;
  });
  EXPECT_GT(runs, 10000);
}

TEST(Predict, RefusesValuesWithoutAFormula) {
  CellConfig cell = issue_1935();
  cell.arch = "other";
  EXPECT_THROW(predict(cell, Arm::kAfter), Error);
  for (std::string ModelConfig::* word : {&ModelConfig::layer, &ModelConfig::form}) {
    cell = issue_1935();
    cell.model.*word = "other";
    EXPECT_THROW(predict(cell, Arm::kAfter), Error);
  }
  cell = issue_1935();
  cell.training.recipe = "other";
  EXPECT_THROW(predict(cell, Arm::kAfter), Error);
  EXPECT_THROW(cell.training.param_dtype = "other", Error);
}

TEST(Predict, IsAbsentForFiguresWithoutAFormula) {
  using Change = std::pair<std::string_view, Value>;
  const std::vector<Change> changes[] = {
      {{"training.optimizer", std::string("foreach_adam")}, {"training.clip_norm", 1.0}},
      {{"training.quantized_weights", true}},  // Adam needs masters then
      {{"training.resume_at", std::int64_t{1}}},
  };
  for (const std::vector<Change>& change : changes) {
    CellConfig cell = issue_1935();
    for (const auto& [path, value] : change) find_key(path)->set(cell, value);
    EXPECT_TRUE(predict(cell, Arm::kAfter).empty()) << change.front().first;
  }
  CellConfig cell = issue_1935();
  cell.training.quantized_weights = true;
  EXPECT_FALSE(predict(cell, Arm::kBf16).empty()) << "BF16 has no eight-bit weights to predict";
}

// 1048 x 32 tokens x 2048 = 68,681,728 elements each in Q, K and V, one byte per element, and the scale that the three
// share.
TEST(Predict, Issue1935) {
  const CellConfig cell = issue_1935();
  EXPECT_EQ(retained(cell, Arm::kBefore), 3.0 * (3.0 * 68681728.0 + 4.0));
  EXPECT_EQ(retained(cell, Arm::kBefore), 618135564.0);
  EXPECT_EQ(retained(cell, Arm::kAfter), 0.0);
  EXPECT_EQ(retained(cell, Arm::kBf16), 0.0);
  // Parameters: 4 x 2048 of norms, 6144 + 2048 + 6144 + 2048 of biases, 2048 x (6144 + 2048 + 6144 + 6144) of weights,
  // in each of three layers. Gradients take as much. Then 4 x 3 + 6 scales with histories of 32; x and y, 137,363,456 B
  // each; the loss.
  const double parameters = 3.0 * 2.0 * (8192.0 + 16384.0 + 41943040.0);
  const double scales = 3.0 * 18.0 * 4.0 * 33.0;
  EXPECT_EQ(predict(cell, Arm::kAfter).at("memory.end_of_backward_bytes"),
            2.0 * parameters + scales + 2.0 * 137363456.0 + 4.0);
  EXPECT_EQ(predict(cell, Arm::kAfter).at("memory.end_of_step_bytes"), 5.0 * parameters + scales + 137363456.0 + 4.0);
  for (const Arm arm : {Arm::kBefore, Arm::kAfter, Arm::kBf16}) EXPECT_TRUE(agrees(cell, arm));
}

// Gate and up, 2 x 14336 x 4096, and down, 4096 x 14336, a byte an element and the scales of the column-wise
// orientation:
//   delayed  4 B a weight
//   block    f32, 32 x 224 and 112 x 32 blocks
//   mxfp8    a byte each, 4096 x 896 and 14336 x 128 blocks
TEST(Predict, Llama3With8B) {
  CellConfig cell = llama_3(32, 4096, 32, 14336);
  EXPECT_EQ(retained(cell, Arm::kBefore), 32.0 * (117440512.0 + 58720256.0 + 8.0));
  EXPECT_EQ(retained(cell, Arm::kAfter), 0.0);
  EXPECT_TRUE(agrees(cell, Arm::kBefore));
  cell.training.recipe = "block";
  EXPECT_EQ(retained(cell, Arm::kBefore), 32.0 * (176160768.0 + 28672.0 + 14336.0));
  EXPECT_TRUE(agrees(cell, Arm::kBefore));
  cell.training.recipe = "mxfp8";
  EXPECT_EQ(retained(cell, Arm::kBefore), 32.0 * (176160768.0 + 3670016.0 + 1835008.0));
  EXPECT_TRUE(agrees(cell, Arm::kBefore));
  cell.training.keep_loss = false;
  EXPECT_EQ(retained(cell, Arm::kBefore), 0.0);
}

TEST(Predict, Llama3With405B) {
  CellConfig cell = llama_3(126, 16384, 128, 53248);
  EXPECT_EQ(retained(cell, Arm::kBefore), 126.0 * (3.0 * 872415232.0 + 8.0));
  EXPECT_EQ(retained(cell, Arm::kAfter), 0.0);
  for (const Arm arm : {Arm::kBefore, Arm::kAfter, Arm::kBf16}) EXPECT_TRUE(agrees(cell, arm));
}

// One product in 16 bits, 8 tokens, 1024 x 1024. The peak is where all gradients exist and the node still runs:
// parameters and their gradients (2,099,200 B each), x, y and the gradients of both (16,384 B each), and the loss.
TEST(Predict, PeakOfOneLinear) {
  CellConfig cell;
  cell.device = "meta";
  cell.model = {.layer = "linear", .form = "gpt", .hidden = 1024, .seq = 8};
  EXPECT_EQ(predict(cell, Arm::kAfter).at("memory.peak_bytes"), 2.0 * 2099200.0 + 4.0 * 16384.0 + 4.0);
  EXPECT_TRUE(agrees(cell, Arm::kAfter));
}

// The same in three micro-batches. The peak is in the second backward: the gradients of the first stay, and the
// weight's gradient, 2,097,152 B, exists twice while added. So do x and y in addition to the gradients of both.
TEST(Predict, PeakOfOneLinearInMicroBatches) {
  CellConfig cell;
  cell.device = "meta";
  cell.model = {.layer = "linear", .form = "gpt", .hidden = 1024, .seq = 8};
  cell.training.micro_batches = 3;
  EXPECT_EQ(predict(cell, Arm::kAfter).at("memory.peak_bytes"), 2.0 * 2099200.0 + 2097152.0 + 4.0 * 16384.0 + 4.0);
  EXPECT_EQ(predict(cell, Arm::kAfter).at("memory.end_of_forward_bytes"), 2.0 * 2099200.0 + 2.0 * 16384.0 + 4.0);
  EXPECT_TRUE(agrees(cell, Arm::kAfter));
}

// 8192 tokens, 1024 -> 2 x 4096 -> 1024. Forward peaks at the second product, whose input is 2 x 33,554,432 B in 16
// bits and as much in both orientations of eight bits. If the input is stored first, both exist at once. If it is cast
// as it is computed, its orientations exist together with the weight's copy, twice 4,194,304 B and a scale, and the
// output, 16,777,216 B.
TEST(Predict, ForwardPeakOfAnInputThatIsCastAsItIsComputed) {
  CellConfig cell;
  cell.device = "meta";
  cell.model = {.layer = "layernorm_mlp", .form = "llama", .hidden = 1024, .ffn = 4096, .seq = 8192};
  cell.training.recipe = "delayed";
  const auto forward_peak = [&](bool fused) {
    cell.training.fused_quantize = fused;
    EXPECT_TRUE(agrees(cell, Arm::kAfter));
    return predict(cell, Arm::kAfter).at("memory.forward_peak_bytes");
  };
  EXPECT_EQ(forward_peak(false) - forward_peak(true), 67108864.0 - (8388608.0 + 4.0) - 16777216.0);
  // If a tensor is measured before it is cast, it is stored in both cases.
  cell.training.recipe = "current";
  EXPECT_EQ(forward_peak(false), forward_peak(true));
}

// Two of four MXFP8 layers in eight bits keep theirs as one layer in BF16 keeps its weights, and cast nothing.
TEST(Predict, LayersLeftInBF16AreThoseOfTheBF16Arm) {
  CellConfig cell = llama_3(4, 1024, 8, 4096);
  cell.training.recipe = "mxfp8";
  cell.training.quantized_weights = true;
  cell.training.optimizer = "none";
  const auto weights = [&](std::int64_t first, std::int64_t last, Arm arm) {
    cell.training.first_layers_bf16 = first;
    cell.training.last_layers_bf16 = last;
    EXPECT_TRUE(agrees(cell, arm));
    return predict(cell, arm).at("memory.weight_bytes");
  };
  const double eight = weights(0, 0, Arm::kAfter), sixteen = weights(0, 0, Arm::kBf16);
  EXPECT_GT(eight, sixteen);  // both orientations and their scales
  EXPECT_EQ(weights(1, 1, Arm::kAfter), (eight + sixteen) / 2);
  EXPECT_EQ(weights(1, 0, Arm::kAfter), (3 * eight + sixteen) / 4);
  EXPECT_EQ(weights(4, 0, Arm::kAfter), sixteen);
  EXPECT_EQ(weights(1, 2, Arm::kBf16), sixteen);
}

TEST(Predict, GapCountsInBothDirections) {
  const auto gap = [](double peak, double retained) {
    std::map<std::string, MetricValue> metrics;
    metrics["memory.peak_bytes"].value = peak;
    metrics["memory.retained_bytes"].value = retained;
    metrics["memory.weight_bytes"].reason = "nobody measured it";
    metrics["traffic.collectives"].value = 9;
    const double largest = put_predictions({{"memory.peak_bytes", 100},
                                            {"memory.retained_bytes", 10},
                                            {"memory.weight_bytes", 50},
                                            {"memory.setup_peak_bytes", 70},
                                            {"traffic.collectives", 3}},
                                           metrics);
    EXPECT_EQ(metrics.at("memory.peak_bytes").predicted, 100.0);
    EXPECT_EQ(metrics.at("memory.predicted_peak_bytes").value, 100.0);
    EXPECT_EQ(metrics.at("traffic.collectives").predicted, 3.0);
    EXPECT_FALSE(metrics.contains("memory.predicted_weight_bytes")) << "what was not measured is not explained";
    EXPECT_FALSE(metrics.contains("memory.setup_peak_bytes"));
    return largest;
  };
  EXPECT_EQ(gap(100, 10), 0.0);
  EXPECT_EQ(gap(107, 10), 7.0);
  EXPECT_EQ(gap(93, 10), 7.0);
  EXPECT_EQ(gap(93, 18), 8.0);
}

TEST(Predict, IsReportedBesideTheMeasurement) {
  CellConfig cell = issue_1935();
  cell.measure = {"memory"};
  const ArmResult result = measure_arm(cell, Arm::kBefore);
  EXPECT_EQ(result.metrics.at("memory.unexplained_bytes").value, 0.0);
  EXPECT_EQ(result.metrics.at("memory.retained_bytes").predicted, 618135564.0);
  EXPECT_EQ(result.metrics.at("memory.predicted_retained_bytes").value, 618135564.0);
}

}  // namespace
}  // namespace fp8lab
