#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/cuda/handles.h"
#include "backend/device.h"
#include "ops/elementwise.h"
#include "recipe/recipe.h"
#include "support/cells.h"
#include "support/dense.h"

// Full training runs on the GPU compared with the same runs on the host and on `meta`. They have one schedule, so
// bytes, holders and phases are equal event by event. Losses differ by no more than the order of sums and the
// accumulators of matrix units explain.
namespace fp8lab {
namespace {

using support::FinishedRun;
using support::small_cell;

// One unit of BF16: outputs and gradients are stored in it, and over three steps the errors of a mean do not add up.
constexpr double kRelativeGap = 0x1p-8;

// A value that is cast to the other neighbour changes its product by one step of E4M3, 2^-4; few values do.
constexpr double kOutputDistance = 0x1p-4;

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double distance = 0.0, length = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - b[i];
    distance += difference * difference;
    length += double{b[i]} * b[i];
  }
  return a.size() == b.size() ? std::sqrt(distance / length) : std::nan("");
}

struct Case {
  std::string recipe;
  std::string form;
  std::string layer;
  bool fp8_attention = false;
  bool language_model = false;  ///< with a head tied in form gpt, of its own in form llama
  /// A mixture of which every token has every expert, so that no choice depends on the order of a sum.
  bool mixture = false;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const RecipeRow& row : recipes())
    for (const char* form : {"gpt", "llama"})
      for (const char* layer : {"linear", "grouped_linear", "layernorm_linear", "layernorm_mlp", "multihead_attention",
                                "transformer_layer"})
        out.push_back({std::string(row.name), form, layer});
  for (const char* recipe : {"delayed", "current"})
    for (const char* form : {"gpt", "llama"}) out.push_back({recipe, form, "transformer_layer", true});
  for (const char* recipe : {"bf16", "current"})
    for (const char* form : {"gpt", "llama"}) out.push_back({recipe, form, "transformer_layer", false, true});
  for (const RecipeRow& row : recipes())
    out.push_back({std::string(row.name), "llama", "transformer_layer", false, false, true});
  for (const char* layer : {"layernorm", "rmsnorm"}) out.push_back({"bf16", "gpt", layer});
  return out;
}

std::string case_name(const ::testing::TestParamInfo<Case>& instance) {
  const Case& c = instance.param;
  return c.recipe + "_" + c.form + "_" + c.layer + (c.fp8_attention ? "_fp8_attention" : "") +
         (c.language_model ? "_language_model" : "") + (c.mixture ? "_mixture" : "");
}

CellConfig cell_of(const Case& c, const std::string& device) {
  CellConfig cell = small_cell(c.recipe, c.form, c.layer);
  cell.training.fp8_attention = c.fp8_attention;
  cell.device = device;
  if (c.mixture) {
    cell.model.experts = cell.model.top_k = 3;
    cell.model.expert_ffn = cell.model.ffn;
  }
  if (!c.language_model) return cell;
  cell.training.loss = "cross_entropy";
  cell.model.vocabulary = 65;  // rows that no wide load fits
  cell.model.head = c.form == "gpt" ? "tied" : "own";
  return cell;
}

class RunsOnGpu : public ::testing::TestWithParam<Case> {};

TEST_P(RunsOnGpu, HaveTheScheduleAndLossesOfTheHost) {
  FinishedRun cpu(cell_of(GetParam(), "cpu")), meta(cell_of(GetParam(), "meta")), cuda(cell_of(GetParam(), "cuda"));
  EXPECT_EQ(cuda.ledger().sequence_hash(), cpu.ledger().sequence_hash());
  EXPECT_EQ(cuda.ledger().peak_bytes(), meta.ledger().peak_bytes());
  EXPECT_EQ(cuda.run.device().memory().allocator().reserved_peak_bytes(),
            meta.run.device().memory().allocator().reserved_peak_bytes());
  const std::vector<float>&on_gpu = cuda.run.losses(), &on_host = cpu.run.losses();
  ASSERT_EQ(on_gpu.size(), on_host.size());
  for (std::size_t step = 0; step < on_gpu.size(); ++step) {
    const double gap = std::fabs(double{on_gpu[step]} - on_host[step]) / on_host[step];
    EXPECT_TRUE(gap <= kRelativeGap) << "step " << step << ": " << on_gpu[step] << " on the GPU, " << on_host[step]
                                     << " on the host";
  }
  const std::vector<float>&output = cuda.run.values().output, &host_output = cpu.run.values().output;
  EXPECT_TRUE(relative_distance(output, host_output) <= kOutputDistance) << relative_distance(output, host_output);
  // Runs from other random numbers are as far apart as unrelated values, so the comparison can fail.
  CellConfig other_numbers = cell_of(GetParam(), "cpu");
  other_numbers.training.seed += 1;
  const FinishedRun elsewhere(other_numbers);
  EXPECT_GT(relative_distance(output, elsewhere.run.values().output), 0.5);
}

TEST_P(RunsOnGpu, HaveTheSameBitsEveryTime) {
  FinishedRun one(cell_of(GetParam(), "cuda")), other(cell_of(GetParam(), "cuda"));
  EXPECT_EQ(one.run.losses(), other.run.losses());
  EXPECT_EQ(one.run.values().weights, other.run.values().weights);
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, RunsOnGpu, ::testing::ValuesIn(cases()), case_name);

TEST(CudaSegmentSource, OutOfMemoryIsOneErrorThatListsTheHolders) {
  const auto device = open_device("cuda");
  const HolderId holder = device->holder(HolderKind::kParameter, "layers[0]", "weight");
  const Tensor kept = device->allocate({{1 << 20}, DType::kF32}, holder);
  try {
    device->allocate({{std::int64_t{1} << 42}, DType::kF32}, holder);
    FAIL() << "a GPU with 16 TiB";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("layers[0]"), std::string::npos) << error.what();
  }
  EXPECT_THROW(cuda::allocate_device(std::size_t{1} << 44), OutOfMemory);  // scratch memory, which is in no ledger
  fill(*device, kept, 2.0f);                                               // the GPU still works
  EXPECT_EQ(device->read(kept).back(), 2.0f);
  EXPECT_GT(device->driver_overhead_bytes().value_or(0), 0);
}

}  // namespace
}  // namespace fp8lab
