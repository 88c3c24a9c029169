#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "backend/arch.h"
#include "fixes/fixes.h"
#include "harness/cell/sharding_keys.h"
#include "harness/predict/predict.h"
#include "harness/predict/predicted.h"
#include "nn/layer_table.h"
#include "recipe/recipe.h"

// Closed forms of eight-bit weights and of models over ranks.
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

struct Ranks {
  int ranks;
  const char* mesh;
  bool replicated = false;
};
constexpr Ranks kRanks[] = {{1, ""},    {1, "1"},    {2, ""}, {3, ""}, {4, "4"},      {4, "2x2"},   {6, "2x3"},
                            {3, "3x1"}, {10, "2x5"}, {7, ""}, {8, ""}, {1, "", true}, {3, "", true}};

void draw_optimizer(Draw& draw, TrainingConfig& training) {
  training.optimizer = draw.of({"none", "adam", "adam", "foreach_adam", "sgd"});
  if (training.optimizer == "none") training.weight_average = false;
  training.weight_decay = draw.chance() ? 0.0 : 0.1;
  training.decoupled_decay = draw.chance();
  training.master_weights = "none";
  training.moments = "f32";
  training.clip_norm = 0.0;
  training.masters_from = "initial_values";
  if (training.optimizer != "adam") return;
  if (training.quantized_weights) training.masters_from = draw.of({"initial_values", "host_copy", "eight_bits"});
  const bool bf16 = training.param_dtype == "bf16";
  training.master_weights = draw.of({"f32", bf16 ? "remainder" : "f32"});
  if (!training.quantized_weights && draw.chance()) training.master_weights = "none";
  training.moments = draw.of({"f32", "bf16", "f16", "e4m3"});
  training.clip_norm = draw.chance() ? 0.0 : 1.0;
}

/// Draws the keys of `cell` that do not follow from the arguments.
void draw_rest(Draw& draw, CellConfig& cell) {
  cell.device = "meta";
  cell.model.form = draw.of({"gpt", "llama"});
  cell.model.op_fuser = draw.of({"none", "mlp"});
  cell.training.fp8_attention = draw.chance();
  cell.training.fp8_attention_backward = !cell.training.fp8_attention || draw.upto(3) > 1;
  cell.training.fp8_mha = cell.training.fp8_attention && cell.training.fp8_attention_backward && draw.chance();
  cell.training.fused_quantize = draw.chance();
  cell.training.param_dtype = draw.of({"bf16", "f32"});
  cell.training.steps = draw.upto(3);
  cell.training.micro_batches = draw.of<std::int64_t>({1, 1, 2, 3});
  cell.training.loss = draw.of({"sum", "mse"});
  cell.training.keep_loss = draw.upto(4) > 1;
  cell.training.validation_batches = draw.of<std::int64_t>({0, 1, 2});
  cell.training.validate_every = cell.training.validation_batches > 0 ? draw.of<std::int64_t>({0, 1, 2}) : 0;
  cell.training.cache_weights = !is_sharded(cell) && draw.chance();
  cell.training.initial_history_length = cell.training.recipe == "delayed" && draw.chance() ? draw.upto(2000) : 0;
  cell.training.deferred_init.reset();
  if (is_sharded(cell) && draw.chance()) cell.training.deferred_init = draw.chance();
  cell.gather_ahead = is_sharded(cell) && draw.chance();
  cell.training.checkpoint_every =
      cell.training.checkpoint != Recompute::kNone ? std::min(cell.model.layers, draw.upto(3)) : 1;
  cell.reduce_dtype.reset();
  if (is_sharded(cell) && draw.chance()) cell.reduce_dtype = draw.of({"bf16", "f32", "f32"});
  cell.training.weight_average = draw.upto(4) == 1;
  draw_sizes(draw, cell.training.recipe, cell.model);
  draw_bf16_layers(draw, cell);
  draw_optimizer(draw, cell.training);
  draw_language(draw, cell);
  draw_frozen_layers(draw, cell);
}

void set_ranks(CellConfig& cell, const Ranks& ranks, bool reshard) {
  cell.ranks = ranks.ranks;
  cell.mesh = ranks.mesh;
  cell.sharding.reset();
  if (ranks.replicated) cell.sharding = Sharded::kDdp;
  cell.reshard_after_forward = reshard || !is_sharded(cell);
}

/// Visits every layer, recipe and architecture with weights in 16 and in 8 bits.
template <class Visit>
void for_each_kind(Visit visit) {
  for (const LayerRow& layer : layer_table())
    for (const RecipeRow& recipe : recipes())
      for (const ArchProfile& arch : arch_profiles())
        for (const bool quantized_weights : {false, true}) {
          CellConfig cell;
          cell.arch = arch.name;
          cell.model.layer = layer.name;
          cell.training.recipe = recipe.name;
          cell.training.quantized_weights = quantized_weights;
          if (!testing::Test::HasFailure()) visit(cell);
        }
}

TEST(PredictSharded, EqualsTheMeasurementOfEveryConfiguration) {
  Draw draw;
  int runs = 0;
  for_each_kind([&](CellConfig cell) {
    for (const Ranks& ranks : kRanks)
      for (const bool reshard : {true, false})
        for (const char* checkpoint : {"none", "full", "selective", "selective_alternate"})
          for (int i = 0; i < 2; ++i) {
            cell.training.checkpoint = checkpoint;
            set_ranks(cell, ranks, reshard);
            draw_rest(draw, cell);
            if (!can_run(cell)) continue;
            ASSERT_TRUE(agrees(cell, Arm::kAfter));
            ++runs;
          }
  });
  EXPECT_GT(runs, 4000);
}

TEST(PredictSharded, EqualsTheMeasurementUnderEveryRevertedFix) {
  Draw draw;
  int runs = 0, stops = 0;
  for_each_kind([&](CellConfig cell) {
    for (const Fix& fix : fixes())
      for (int i = 0; i < 4; ++i) {
        cell.fix = fix.name;
        cell.training.checkpoint = draw.of({"none", "full"});
        set_ranks(cell, draw.of({kRanks[0], kRanks[2], kRanks[3], kRanks[5], kRanks[6]}), draw.chance());
        draw_rest(draw, cell);
        // Validation after steps frees what this fix is about, so that there is no closed form of both.
        if (fix.name == "clear_gathered_transposes") cell.training.validate_every = 0;
        CellConfig kept = cell;
        kept.training.checkpoint = draw.of({"selective", "selective_alternate"});
        if (cell.training.checkpoint == Recompute::kFull && can_run(kept)) cell = kept;
        if (!can_run(cell)) continue;
        const Estimate formulas = estimate(cell, Arm::kBefore);
        if (formulas.figures.empty()) {
          EXPECT_TRUE(ends_in_an_error(cell));
          ++stops;
        } else {
          ASSERT_TRUE(agrees(cell, Arm::kBefore, formulas));
          ++runs;
        }
      }
  });
  EXPECT_GT(runs + stops, 350 * static_cast<int>(fixes().size()));
  EXPECT_GT(stops, 10);
}

TEST(PredictSharded, EqualsTheMeasurementWhereRanksSplitSequences) {
  Draw draw;
  int runs = 0;
  for_each_kind([&](CellConfig cell) {
    for (const Ranks& ranks : {kRanks[2], kRanks[3], kRanks[5], kRanks[8]})
      for (const bool reshard : {true, false})
        for (const char* checkpoint : {"none", "full", "selective", "selective_alternate"})
          for (const Arm arm : {Arm::kBefore, Arm::kAfter}) {
            cell.fix = "release_attention_tensors";
            cell.training.checkpoint = checkpoint;
            set_ranks(cell, ranks, reshard);
            draw_rest(draw, cell);
            cell.context_parallel = cell.ranks % 2 == 0 && draw.chance() ? 2 : cell.ranks;
            cell.model.seq *= 2 * cell.context_parallel;
            cell.model.window = 0;
            cell.model.dropout = 0.0;
            cell.training.fp8_mha = false;
            if (!can_run(cell)) continue;
            ASSERT_TRUE(agrees(cell, arm));
            ++runs;
          }
  });
  EXPECT_GT(runs, 1000);
}

TEST(PredictSharded, EqualsTheMeasurementWhereRanksHaveTheExpertsBetweenThem) {
  Draw draw;
  int runs = 0;
  for_each_kind([&](CellConfig cell) {
    if (cell.model.layer != "layernorm_mlp" && cell.model.layer != "transformer_layer") return;
    if (cell.training.quantized_weights) return;
    for (const Ranks& ranks : {kRanks[2], kRanks[3], kRanks[4], kRanks[5], kRanks[6], kRanks[10]})
      for (const bool reshard : {true, false})
        for (const char* checkpoint : {"none", "full"})
          for (int i = 0; i < 2; ++i) {
            cell.training.checkpoint = checkpoint;
            set_ranks(cell, ranks, reshard);
            draw_rest(draw, cell);
            const int shards = mesh_of(cell).shards;
            cell.expert_parallel = shards % 2 == 0 && draw.chance() ? 2 : shards;
            cell.model.form = "llama";
            cell.model.bias.reset();
            cell.model.op_fuser = "none";
            cell.model.experts = cell.expert_parallel * draw.of<std::int64_t>({1, 2, 5});
            cell.model.top_k = std::min<std::int64_t>(cell.model.experts, draw.upto(4));
            const bool has_groups = cell.model.experts >= 8 && cell.model.experts % 2 == 0;
            cell.model.expert_groups =
                cell.model.router == RouterScore::kSigmoid && has_groups && draw.chance() ? 2 : 0;
            cell.model.top_groups = 1;
            cell.training.fp8_dispatch = cell.training.recipe != "current" && draw.chance();
            if (!can_run(cell)) continue;
            ASSERT_TRUE(agrees(cell, Arm::kAfter));
            ++runs;
          }
  });
  EXPECT_GT(runs, 400);
}

CellConfig llama_3_8b(const char* recipe, const char* arch, bool quantized_weights) {
  CellConfig cell;
  cell.device = "meta";
  cell.arch = arch;
  cell.ranks = 8;
  cell.model = {.layer = "transformer_layer",
                .form = "llama",
                .layers = 32,
                .hidden = 4096,
                .heads = 32,
                .kv_heads = 8,
                .ffn = 14336,
                .seq = 8192};
  cell.training.recipe = recipe;
  cell.training.quantized_weights = quantized_weights;
  return cell;
}

// A layer has 6144 + 4096 + 28672 rows of 4096 and 4096 rows of 14336, that is 27,262,976 weights on each of 8 ranks,
// and two norms, 1024 elements of 2 B:
//   bf16        2 B a weight
//   per tensor  1 B and 4 scales of 4 B; on hopper twice the bytes, for the transposes
//   mxfp8       1 + 1/32 B in each orientation, no padding at these sizes
TEST(PredictSharded, WeightBytesOfLlama3With8B) {
  const auto of_weights = [](const CellConfig& cell) {
    EXPECT_TRUE(agrees(cell, Arm::kAfter));
    return predict(cell, Arm::kAfter).at("memory.weight_bytes") / 32.0 - 2048.0;
  };
  const double weights = 27262976.0;
  EXPECT_EQ(of_weights(llama_3_8b("bf16", "blackwell", true)), 2.0 * weights);
  EXPECT_EQ(of_weights(llama_3_8b("delayed", "blackwell", false)), 2.0 * weights);
  EXPECT_EQ(of_weights(llama_3_8b("delayed", "blackwell", true)), weights + 16.0);
  EXPECT_EQ(of_weights(llama_3_8b("current", "hopper", true)), 2.0 * weights + 16.0);
  EXPECT_EQ(of_weights(llama_3_8b("mxfp8", "blackwell", true)), 2.0 * weights * 33.0 / 32.0);
}

CellConfig one_product(const char* recipe) {
  CellConfig cell;
  cell.device = "meta";
  cell.ranks = 2;
  cell.model = {.layer = "linear", .form = "llama", .layers = 1, .hidden = 64, .seq = 128};
  cell.training.recipe = recipe;
  cell.training.quantized_weights = true;
  return cell;
}

// 64 x 64 over two ranks, gathered for forward and for backward; its gradient is 8192 B in bf16.
//   mxfp8  64 rows of round_up(64 / 32, 4) scales, then 64 / 32 rows of round_up(64, 128)
//   block  shards of 32 rows cut blocks of 128: refused, so it travels as it would without
TEST(PredictSharded, TrafficOfOneProduct) {
  struct Row {
    const char* recipe;
    double payload, scales, all_reduce, collectives;
  };
  const Row rows[] = {{"bf16", 2 * 8192.0, 0.0, 0.0, 3.0},
                      {"delayed", 2 * 4096.0, 0.0, 3 * 4.0, 5.0},
                      {"current", 2 * 4096.0, 0.0, 0.0, 3.0},
                      {"mxfp8", 2 * 4096.0, 64 * 4.0 + 2 * 128.0, 0.0, 3.0}};
  for (const Row& row : rows) {
    const auto figures = predict(one_product(row.recipe), Arm::kAfter);
    EXPECT_EQ(figures.at("traffic.all_gather_payload_bytes"), row.payload) << row.recipe;
    EXPECT_EQ(figures.at("traffic.all_gather_scale_bytes"), row.scales) << row.recipe;
    EXPECT_EQ(figures.at("traffic.reduce_scatter_bytes"), 8192.0) << row.recipe;
    EXPECT_EQ(figures.at("traffic.all_reduce_bytes"), row.all_reduce) << row.recipe;
    EXPECT_EQ(figures.at("traffic.collectives"), row.collectives) << row.recipe;
  }
  CellConfig refused = one_product("block");
  refused.model.hidden = 128;
  EXPECT_EQ(predict(refused, Arm::kAfter).at("traffic.all_gather_payload_bytes"), 2 * 2 * 128 * 128.0);
  refused.ranks = 1;
  refused.mesh = "1";
  EXPECT_EQ(predict(refused, Arm::kAfter).at("traffic.all_gather_payload_bytes"), 2 * 128 * 128.0);
  EXPECT_EQ(predict(refused, Arm::kAfter).at("traffic.all_gather_scale_bytes"), 2 * 4 * 4.0);
}

// 64 rows over three ranks: 22 from each, so that the last one's 20 are padded; over five, 13 from each and 12. What is
// gathered and the copy of the gradient have 66 and 65 rows; the shard has rank 0's 22 and 13.
TEST(PredictSharded, UnevenShardsArePaddedToTheRowsOfRank0) {
  for (const auto& [ranks, each] : {std::pair(3, 22.0), {5, 13.0}}) {
    CellConfig cell = one_product("bf16");
    cell.ranks = ranks;
    const double row = 64 * 2.0, padded = ranks * each * row;
    const auto figures = predict(cell, Arm::kAfter);
    EXPECT_EQ(figures.at("traffic.all_gather_bytes"), 2 * padded);
    EXPECT_EQ(figures.at("traffic.reduce_scatter_bytes"), padded);
    EXPECT_EQ(figures.at("memory.weight_bytes"), each * row);
    // The peak is when all gradients exist: of x and y, 128 rows each as these, and of the gathered weight. If the last
    // is copied, neither the gathered weight nor the gradient of y is there any more.
    EXPECT_EQ(figures.at("memory.peak_bytes"), each * row + padded + 64 * row + 4 * 128 * row + 4.0);
    EXPECT_TRUE(agrees(cell, Arm::kAfter));
    cell.training.recipe = "current";
    EXPECT_EQ(predict(cell, Arm::kAfter).at("traffic.all_gather_payload_bytes"), 2 * padded / 2);
    EXPECT_TRUE(agrees(cell, Arm::kAfter));
    cell.reduce_dtype = "f32";
    EXPECT_EQ(predict(cell, Arm::kAfter).at("traffic.reduce_scatter_bytes"), 2 * padded);
    EXPECT_TRUE(agrees(cell, Arm::kAfter));
  }
}

// 2048 rows over 66 ranks: 32, one block, for each of the first 64, and none for two, which move 32 as well. So 2112
// rows of scales arrive, although the parameter's own array has 2048.
TEST(PredictSharded, UnevenShardsOfFullBlocksArePadded) {
  CellConfig cell = one_product("mxfp8");
  cell.ranks = 66;
  cell.model.hidden = 2048;
  cell.model.seq = 32;
  for (const char* fix : {"", "strip_scale_padding", "choose_usage_by_pass"}) {
    cell.fix = fix;
    EXPECT_TRUE(agrees(cell, cell.fix.empty() ? Arm::kAfter : Arm::kBefore)) << fix;
  }
  const auto figures = predict(cell, Arm::kAfter);
  EXPECT_EQ(figures.at("traffic.all_gather_payload_bytes"), 2 * 2112 * 2048.0);
  EXPECT_EQ(figures.at("traffic.all_gather_scale_bytes"), 2112 * 64.0 + 66 * 2048.0);
}

// Weights of 64 x 64 in bf16, 8192 B, and eight tokens, 1024 B a matrix. Without gathering ahead forward peaks at the
// third layer, above three inputs; with it at the second, above two inputs, with the third layer's weights in flight.
TEST(PredictSharded, GatheringAheadHoldsOneMoreLayerAndMovesNoMoreBytes) {
  CellConfig cell = one_product("bf16");
  cell.model.layers = 3;
  cell.model.seq = 8;
  cell.training.optimizer = "adam";
  const auto wanted = predict(cell, Arm::kAfter);
  cell.gather_ahead = true;
  EXPECT_TRUE(agrees(cell, Arm::kAfter));
  const auto ahead = predict(cell, Arm::kAfter);
  for (const auto& [name, figure] : wanted) {
    if (name == "memory.peak_bytes")
      EXPECT_GE(ahead.at(name), figure);
    else
      EXPECT_EQ(ahead.at(name), figure + (name == "memory.forward_peak_bytes" ? 8192.0 - 1024.0 : 0.0)) << name;
  }
  cell.model.layers = 1;
  const auto alone = predict(cell, Arm::kAfter);
  cell.gather_ahead = false;
  EXPECT_EQ(alone, predict(cell, Arm::kAfter)) << "a single layer has none before it";
}

// Replicas sum the gradients of 32 rows; Adam shares one amax and one norm over the ranks.
TEST(PredictSharded, ReductionsOfOneProduct) {
  CellConfig cell = one_product("current");
  cell.ranks = 4;
  cell.mesh = "2x2";
  cell.training.optimizer = "adam";
  cell.training.master_weights = "f32";
  cell.training.clip_norm = 1.0;
  const auto figures = predict(cell, Arm::kAfter);
  EXPECT_EQ(figures.at("traffic.all_reduce_bytes"), 32 * 64 * 2.0 + 4.0 + 4.0);
  EXPECT_EQ(figures.at("traffic.collectives"), 2.0 + 1.0 + 3.0);
}

}  // namespace
}  // namespace fp8lab
