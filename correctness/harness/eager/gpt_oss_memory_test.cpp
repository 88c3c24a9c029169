#include <gtest/gtest.h>

#include <string>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/subjects/torch_memory.h"
#include "support/error_of.h"
#include "support/paths.h"

// The closed form of PyTorch's memory for what GPT-OSS has: attention with sinks, and experts with biases and limits.
namespace fp8lab {
namespace {

using eager::Operators;
using eager::Program;

const std::string kSubjects = std::string(paths::kScenarios) + "/../lib/subjects";

CellConfig gpt_oss_20b() {
  CellConfig cell;
  cell.device = "meta";
  cell.ranks = 32;
  cell.reduce_dtype = ReduceDType::kF32;
  cell.model = {.layer = "transformer_layer",
                .form = "llama",
                .layers = 24,
                .hidden = 2880,
                .heads = 64,
                .kv_heads = 8,
                .ffn = 2880,
                .seq = 8192};
  cell.model.head_dim = 64;
  cell.model.vocabulary = 201088;
  cell.model.window = 128;
  cell.model.window_every = 2;
  cell.model.attention_sinks = true;
  cell.model.bias = Bias::kAll;
  cell.model.experts = 32;
  cell.model.top_k = 4;
  cell.model.swiglu_limit = 7;
  cell.training.steps = 2;
  cell.training.loss = Loss::kCrossEntropy;
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  return cell;
}

eager::Memory of_shapes(const CellConfig& cell) {
  return memory_of(cell, Program::kTorchtitan, Operators::kCudaOnShapes);
}

std::int64_t saved(const CellConfig& cell) {
  return of_shapes(cell).at_end_of_forward.at(static_cast<std::size_t>(eager::Owner::kSaved));
}

std::string refusal_of(const CellConfig& cell, Program program = Program::kTorchtitan,
                       const char* release = "torch@2.15") {
  return support::error_of([&] { TorchMemory::find(kSubjects, release).estimate(cell, Arm::kAfter, program); });
}

TEST(TorchMemoryOfGptOss, HasTheTensorsThatALayerSaves) {
  const std::int64_t hidden = 2880, query = 4096, kv = 512, heads = 64, head_dim = 64, experts = 32, width = 2880;
  // Attention saves the stream, the norm's output, the next product's input, queries, keys and values, what the kernel
  // returned, the stream behind it; cosines and sines; LSE, the sigmoids in FP32 and in BF16; two norms' statistics.
  const std::int64_t of_attention =
      2 * (3 * hidden + 2 * query + query + 2 * kv) + 4 * 2 * head_dim + (4 + 4 + 2) * heads + 2 * 4;
  // The router saves its input and its scores in FP32, and the sum of the weights.
  const std::int64_t of_router = 4 * hidden + 4 * experts + 4;
  // For a row experts save the expert's input, gate and up as they were, and clamped gate, clamped up, the sigmoid,
  // gate times sigmoid and the product; the output in FP32; its weight twice, and numbers: of the expert for the token,
  // of the place and the token, and of the expert for two products' biases.
  const std::int64_t of_row = 2 * (hidden + 2 * width + 5 * width) + 4 * hidden + 2 * 4 + 3 * 8 + 2 * 8;
  const std::int64_t once = 4 * experts * hidden + 4 * experts + 16;  // the router's weight, ends of rows, a state
  CellConfig cell = gpt_oss_20b(), more = gpt_oss_20b();
  ++more.model.layers;
  EXPECT_EQ(saved(more) - saved(cell), 8192 * (of_attention + of_router + 4 * of_row) + once);
}

// Kernels of attention read fewer keys, and return and save what they do without a window.
TEST(TorchMemoryOfGptOss, OfWindows_IsTheSame) {
  CellConfig cell = gpt_oss_20b();
  const eager::Memory all = of_shapes(cell);
  cell.model.window = 0;
  cell.model.window_every = 1;
  EXPECT_EQ(of_shapes(cell).figures, all.figures);
}

// A gradient of biases is a part of a tensor with one row more, of the rows that are no expert's.
TEST(TorchMemoryOfGptOss, GradientsOfBiases_HaveARowMore) {
  CellConfig cell = gpt_oss_20b();
  cell.ranks = 1;
  cell.reduce_dtype.reset();
  cell.training.master_weights = Master::kNone;
  cell.training.moments = Moments::kBF16;
  const eager::Memory memory = of_shapes(cell);
  const auto of = [&](const char* name) { return memory.figures.at(name); };
  const std::int64_t rows = 24 * (2 * 2880 + 2880) * 2;
  const std::int64_t inputs_and_output = 8192 * 16 + 4 + 4;  // tokens, targets, the loss and its weights' sum
  EXPECT_NEAR(static_cast<double>(of("memory.end_of_backward_bytes") - of("memory.end_of_step_bytes")),
              static_cast<double>(of("memory.weight_bytes") + rows), static_cast<double>(inputs_and_output));
}

TEST(TorchMemoryOfGptOss, WithOtherKeys_NamesWhatItWasNotComparedWith) {
  CellConfig cell = gpt_oss_20b();
  EXPECT_EQ(refusal_of(cell), "");
  EXPECT_NE(refusal_of(cell, Program::kTorchtitan, "torch@2.14").find("write `--as torch@2.15`"), std::string::npos);
  const auto expect = [&](const char* reason, auto change) {
    CellConfig changed = gpt_oss_20b();
    change(changed);
    const std::string found = refusal_of(changed);
    EXPECT_NE(found.find(reason), std::string::npos) << reason << " in " << found;
    EXPECT_EQ(found.find("; "), found.rfind("; ")) << "one reason: " << found;
  };
  expect("model.shared_experts: ", [](CellConfig& of) { of.model.shared_experts = 1; });
  expect("model.dense_layers: ", [](CellConfig& of) { of.model.dense_layers = 1; });
  expect("model.qk_norm: ", [](CellConfig& of) { of.model.qk_norm = true; });
  expect("model.head_dim: flash attention", [](CellConfig& of) { of.model.head_dim = 20; });
  expect("model.swiglu_limit: figures cover experts with biases and limits",
         [](CellConfig& of) { of.model.bias.reset(); });
  expect("model.swiglu_limit: figures cover experts with biases and limits",
         [](CellConfig& of) { of.model.swiglu_limit = 0; });
  expect("model.swiglu_limit: figures cover limits of experts", [](CellConfig& of) { of.model.top_k = 0; });
  expect("model.window: figures cover windows with `attention_sinks`", [](CellConfig& of) {
    of.model.attention_sinks = false;
    of.model.window_every = 1;
  });
  expect("training.param_dtype: attention with sinks", [](CellConfig& of) {
    of.training.param_dtype = ParamDType::kF32;
    of.training.master_weights = Master::kNone;
    of.model.kv_heads = of.model.heads;
  });
  const std::string of_worker = refusal_of(cell, Program::kWorker);
  for (const char* key : {"model.attention_sinks: ", "model.swiglu_limit: ", "model.bias: "})
    EXPECT_NE(of_worker.find(std::string(key) + "figures cover it in torchtitan's program"), std::string::npos)
        << key << " in " << of_worker;
}

}  // namespace
}  // namespace fp8lab
