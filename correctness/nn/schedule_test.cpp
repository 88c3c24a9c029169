// Every configuration has the same ordered sequence of (bytes, holder, phase) on every device, and reads no value that
// was never written. Fresh and freed memory is poisoned with NaN, so reading it would show in the results.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "reference/compare.h"
#include "support/cells.h"
#include "support/layer_names.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using support::FinishedRun;
using support::small_cell;

std::uint64_t hash_on(const std::string& device, CellConfig cell) {
  cell.device = device;
  return FinishedRun(cell).ledger().sequence_hash();
}

void expect_finite(const std::vector<float>& values, const char* what) {
  ASSERT_FALSE(values.empty()) << what;
  for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << what;
}

void expect_same_bits(const std::vector<std::vector<float>>& made, const std::vector<std::vector<float>>& expected,
                      const char* what) {
  ASSERT_EQ(made.size(), expected.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(reference::bitwise_equal(made[i], expected[i])) << what << " " << i;
}

/// Keys that the layer does not use are not varied.
std::vector<CellConfig> variants(const CellConfig& base) {
  const bool attends = base.model.layer == "multihead_attention" || base.model.layer == "transformer_layer";
  const bool has_fusible_mlp = base.model.layer == "transformer_layer";
  std::vector<CellConfig> all{base};
  const auto vary = [&](bool useful, auto&& change) {
    if (!useful) return;
    const std::size_t count = all.size();
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(all[i]);
      change(all.back());
    }
  };
  vary(true, [](CellConfig& cell) { cell.arch = "blackwell"; });
  vary(true, [](CellConfig& cell) { cell.training.checkpoint = "full"; });
  vary(attends, [](CellConfig& cell) { cell.training.fp8_attention = true; });
  vary(attends, [](CellConfig& cell) { cell.model.dropout = 0.1; });
  vary(has_fusible_mlp, [](CellConfig& cell) { cell.model.op_fuser = "mlp"; });
  vary(!attends, [](CellConfig& cell) { cell.training.loss = "sum"; });
  vary(!attends, [](CellConfig& cell) { cell.training.optimizer = "none"; });
  vary(!attends, [](CellConfig& cell) { cell.training.param_dtype = "f32"; });
  for (const bool eight_bit_backward : {false, true}) {
    if (!attends) break;
    CellConfig cell = base;
    cell.training.fp8_attention = true;
    cell.training.fp8_attention_backward = cell.training.fp8_mha = eight_bit_backward;
    all.push_back(cell);
  }
  if (attends) {
    CellConfig cell = base;
    cell.model.head_dim = base.model.hidden;
    cell.model.qk_norm = true;
    cell.model.bias = Bias::kQkv;
    all.push_back(cell);
    cell.training.fp8_attention = cell.training.fp8_mha = true;
    cell.training.checkpoint = "full";
    all.push_back(cell);
  }
  if (attends) {
    CellConfig cell = base;
    cell.model.attention_sinks = true;
    cell.training.micro_batches = 2;
    all.push_back(cell);
  }
  if (attends && base.model.form == "llama") {
    CellConfig cell = base;
    cell.model.kv_heads = 0;
    cell.model.head_dim = cell.model.rope_dim = base.model.hidden;
    cell.model.q_rank = cell.model.kv_rank = base.model.hidden;
    cell.model.value_dim = 2 * base.model.hidden;
    all.push_back(cell);
    cell.training.checkpoint = "full";
    cell.training.micro_batches = 2;
    all.push_back(cell);
  }
  if (!has_fusible_mlp) return all;
  if (base.model.form == "llama") {
    CellConfig cell = base;
    cell.model.experts = 5;
    cell.model.top_k = 2;
    cell.model.expert_ffn = base.model.ffn;
    all.push_back(cell);
    cell.training.checkpoint = "full";
    cell.training.micro_batches = 2;
    cell.model.experts = 3;
    cell.model.top_k = 1;
    all.push_back(cell);
    cell.model.top_k = cell.model.shared_experts = 2;
    cell.model.dense_layers = base.model.layers - 1;
    cell.model.router = RouterScore::kSigmoid;
    cell.model.router_scale = 2.5;
    all.push_back(cell);
    cell.model.bias = Bias::kAll;
    cell.model.swiglu_limit = 7.0;
    all.push_back(cell);
    cell.model.experts = 8;
    cell.model.expert_groups = 4;
    cell.model.top_groups = 2;
    cell.model.router_bias_rate = cell.model.router_aux_loss = 0.01;
    all.push_back(cell);
  }
  for (const char* kept : {"selective", "selective_alternate"})
    for (const char* op_fuser : {"none", "mlp"}) {
      CellConfig cell = base;
      cell.training.checkpoint = kept;
      cell.model.op_fuser = op_fuser;
      cell.model.dropout = 0.1;
      all.push_back(cell);
    }
  CellConfig language_model = base;
  language_model.training.loss = "cross_entropy";
  language_model.model.vocabulary = 50;
  all.push_back(language_model);
  language_model.model.head = "tied";
  language_model.model.bias = Bias::kNone;
  language_model.model.dropout = 0.1;
  language_model.training.checkpoint = "full";
  language_model.training.micro_batches = 2;
  all.push_back(language_model);
  return all;
}

std::string describe(const CellConfig& cell) {
  return cell.model.layer + " " + cell.model.form + " " + cell.training.recipe + " on " + cell.arch + ", checkpoint " +
         std::string(cell.training.checkpoint.text()) + ", dropout " + std::to_string(cell.model.dropout) +
         ", op fuser " + std::string(cell.model.op_fuser.text()) +
         (cell.training.fp8_attention ? ", fp8 attention" : "") + (cell.training.fp8_mha ? ", fp8 mha" : "") +
         ", loss " + std::string(cell.training.loss.text()) + ", optimizer " +
         std::string(cell.training.optimizer.text()) + ", " + std::string(cell.training.param_dtype.text()) +
         ", vocabulary " + std::to_string(cell.model.vocabulary) + ", head_dim " + std::to_string(cell.model.head_dim) +
         ", top_k " + std::to_string(cell.model.top_k) + ", shared experts " +
         std::to_string(cell.model.shared_experts) + ", kv_rank " + std::to_string(cell.model.kv_rank) + ", sinks " +
         std::to_string(cell.model.attention_sinks) + ", swiglu_limit " + std::to_string(cell.model.swiglu_limit);
}

using Point = std::tuple<const char*, const char*, const char*>;
class EveryConfiguration : public ::testing::TestWithParam<Point> {};

TEST_P(EveryConfiguration, RunsOneScheduleEverywhereAndReadsOnlyWhatWasWritten) {
  const auto& [layer, form, recipe] = GetParam();
  CellConfig base = small_cell(recipe, form, layer);
  base.model.layers = 2;
  base.training.steps = 2;
  for (CellConfig cell : variants(base)) {
    SCOPED_TRACE(describe(cell));
    cell.device = "cpu";
    FinishedRun run(cell);
    EXPECT_EQ(run.ledger().sequence_hash(), hash_on("meta", cell));
    expect_finite(run.run.losses(), "losses");
    expect_finite(run.run.values().output, "output");
    for (const auto& gradient : run.run.values().gradients) expect_finite(gradient, "gradients");
    for (const auto& weight : run.run.values().weights) expect_finite(weight, "weights");
    EXPECT_EQ(run.mark("end_of_backward").retained_bytes, 0);
    EXPECT_EQ(run.mark("end_of_step").retained_bytes, 0);
  }
}

// With checkpointing too, in which the second forward casts as the first did. Saved tensors and results do not
// change. Memory in between does: less if a scale was known beforehand; earlier, by an amax, if the scale follows
// from it.
TEST_P(EveryConfiguration, TrainsTheSameIfNormsAndActivationsStoreTheirResultsFirst) {
  const auto& [layer, form, recipe] = GetParam();
  CellConfig base = small_cell(recipe, form, layer);
  base.training.steps = 3;
  const bool measures = std::string_view(recipe) == "current";
  const bool casts_norms =
      std::string_view(layer) != "linear" && std::string_view(layer) != "grouped_linear" && !is_norm(base.model);
  const bool fuses = (measures || std::string_view(recipe) == "delayed") && casts_norms;
  const std::int64_t early_bytes = measures ? 4 : 0;  // one f32 at a time
  for (const CellConfig& cell : variants(base)) {
    SCOPED_TRACE(describe(cell));
    FinishedRun fused(cell);
    CellConfig changed = cell;
    changed.training.fused_quantize = false;
    FinishedRun stored(changed);
    const TrainingRun::Values &made = fused.run.values(), &expected = stored.run.values();
    EXPECT_TRUE(reference::bitwise_equal(fused.run.losses(), stored.run.losses()));
    EXPECT_TRUE(reference::bitwise_equal(made.output, expected.output));
    expect_same_bits(made.gradients, expected.gradients, "gradients");
    expect_same_bits(made.weights, expected.weights, "weights");
    for (const char* mark : {"end_of_forward", "end_of_backward", "end_of_step"})
      EXPECT_EQ(fused.mark(mark).live_bytes, stored.mark(mark).live_bytes) << mark;
    EXPECT_EQ(fused.ledger().sequence_hash() != stored.ledger().sequence_hash(), fuses);
    EXPECT_LE(fused.ledger().peak_bytes(PhaseKind::kForward),
              stored.ledger().peak_bytes(PhaseKind::kForward) + early_bytes);
  }
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto& [layer, form, recipe] = info.param;
  return std::string(layer) + "_" + form + "_" + recipe;
}

INSTANTIATE_TEST_SUITE_P(All, EveryConfiguration,
                         ::testing::Combine(::testing::ValuesIn(support::layer_names()),
                                            ::testing::Values("gpt", "llama"),
                                            ::testing::ValuesIn(support::recipe_names())),
                         name_of);

// The hash depends on every byte, name and phase.
TEST(ScheduleHash, ChangesWithOneByteMore) {
  const CellConfig cell = small_cell("delayed");
  const auto hash_with = [&](std::int64_t extra_bytes, std::string_view owner, PhaseKind phase) {
    TrainingRun run(cell, {}, make_recipe("delayed"));
    run.device().ledger().set_phase(phase, 0);
    run.device().memory().allocate(extra_bytes, run.device().holder(HolderKind::kWorkspace, owner));
    run.run();
    return run.device().ledger().sequence_hash();
  };
  const std::uint64_t hash = hash_with(16, "here", PhaseKind::kSetup);
  EXPECT_EQ(hash_with(16, "here", PhaseKind::kSetup), hash);
  EXPECT_NE(hash_with(17, "here", PhaseKind::kSetup), hash);
  EXPECT_NE(hash_with(16, "there", PhaseKind::kSetup), hash);
  EXPECT_NE(hash_with(16, "here", PhaseKind::kForward), hash);
  EXPECT_NE(hash_on("meta", cell), hash);
}

TEST(Poison, FillsFreshAndFreedMemory) {
  const std::unique_ptr<Device> device =
      open_device("cpu", {.arch = "hopper", .memory = {.capacity_bytes = 0, .poison = true}});
  const TensorSpec spec{{1, 8}, DType::kBF16};
  Tensor tensor = device->allocate(spec, 0);
  for (const float value : device->read(tensor)) EXPECT_TRUE(std::isnan(value));
  device->write(tensor, std::vector<float>(8, 1.0f));
  tensor = {};
  tensor = device->allocate(spec, 0);
  for (const float value : device->read(tensor)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace fp8lab
