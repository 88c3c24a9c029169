// Every form of every layer, and of language models, compared with the step in double: each output, loss, gradient,
// cast and update, under each recipe, with FP32 parameters.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "harness/measure/measure.h"
#include "support/cells.h"
#include "support/recipe_names.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

struct Form {
  const char* name;
  const char* layer;
  const char* form;
  void (*change)(ModelConfig&) = [](ModelConfig&) {};
};
void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

constexpr const char *kLayer = "transformer_layer", *kAttention = "multihead_attention";
constexpr Form kForms[] = {
    {"linear", "linear", "gpt"},
    {"linear_without_bias", "linear", "llama"},
    {"grouped_linear", "grouped_linear", "llama"},
    {"uneven_grouped_linear", "grouped_linear", "gpt", [](ModelConfig& model) { model.split = "uneven"; }},
    {"layernorm", "layernorm", "gpt"},
    {"layernorm_without_beta", "layernorm", "llama"},
    {"rmsnorm", "rmsnorm", "gpt"},
    {"layernorm_linear", "layernorm_linear", "gpt"},
    {"rmsnorm_linear", "layernorm_linear", "llama"},
    {"gelu_mlp", "layernorm_mlp", "gpt"},
    {"swiglu_mlp", "layernorm_mlp", "llama"},
    {"geglu_mlp", "layernorm_mlp", "gemma"},
    {"attention", kAttention, "gpt"},
    {"grouped_rotary_attention", kAttention, "llama"},
    {"attention_dropout", kAttention, "gpt", [](ModelConfig& model) { model.dropout = 0.25; }},
    {"wide_heads", kAttention, "gpt", [](ModelConfig& model) { model.head_dim = 2 * model.hidden; }},
    {"narrow_heads_qkv_bias", kAttention, "llama",
     [](ModelConfig& model) {
       model.head_dim = model.hidden / 4;
       model.bias = Bias::kQkv;
     }},
    {"gpt_qk_norm", kLayer, "gpt", [](ModelConfig& model) { model.qk_norm = true; }},
    {"llama_window", kLayer, "llama", [](ModelConfig& model) { model.window = 5; }},
    {"qwen3", kLayer, "llama",
     [](ModelConfig& model) {
       model.head_dim = model.hidden;
       model.qk_norm = true;
     }},
    {"latents", kAttention, "llama",
     [](ModelConfig& model) {
       model.kv_heads = 0;
       model.head_dim = model.rope_dim = model.hidden;
       model.q_rank = model.kv_rank = model.value_dim = 2 * model.hidden;
     }},
    {"gpt", kLayer, "gpt"},
    {"llama", kLayer, "llama"},
    {"gemma", kLayer, "gemma"},
    {"mixture", "layernorm_mlp", "llama",
     [](ModelConfig& model) {
       model.experts = 5;
       model.top_k = 2;
       model.expert_ffn = model.ffn;
     }},
    {"mixture_layer", kLayer, "llama",
     [](ModelConfig& model) {
       model.experts = 3;
       model.top_k = 3;
       model.expert_ffn = model.ffn;
     }},
    {"mixture_and_shared_experts", kLayer, "llama",
     [](ModelConfig& model) {
       model.layers = 2;
       model.dense_layers = 1;
       model.experts = 5;
       model.top_k = 2;
       model.expert_ffn = model.ffn;
       model.shared_experts = 2;
       model.router_aux_loss = 3.0;
     }},
    {"gpt_oss", kLayer, "llama",
     [](ModelConfig& model) {
       model.layers = 2;
       model.window = 5;
       model.window_every = 2;
       model.attention_sinks = true;
       model.bias = Bias::kAll;
       model.experts = 5;
       model.top_k = 2;
       model.expert_ffn = model.ffn;
       model.swiglu_limit = 0.5;
     }},
    {"clamped_fused_mlp", "layernorm_mlp", "llama",
     [](ModelConfig& model) {
       model.swiglu_limit = 0.5;
       model.op_fuser = "mlp";
     }},
    {"mixture_with_groups_and_biases", kLayer, "llama",
     [](ModelConfig& model) {
       model.experts = 8;
       model.top_k = 3;
       model.expert_ffn = model.ffn;
       model.router = RouterScore::kSigmoid;
       model.expert_groups = 4;
       model.top_groups = 2;
       model.router_bias_rate = 0.1;
       model.router_aux_loss = 3.0;
     }},
    {"gpt_fused_mlp", kLayer, "gpt", [](ModelConfig& model) { model.op_fuser = "mlp"; }},
    {"llama_dropout_two_layers", kLayer, "llama",
     [](ModelConfig& model) {
       model.dropout = 0.25;
       model.op_fuser = "mlp";
       model.layers = 2;
     }},
    {"language", kLayer, "gpt", [](ModelConfig& model) { model.vocabulary = 41; }},
    {"language_tied", kLayer, "gpt",
     [](ModelConfig& model) {
       model.vocabulary = 41;
       model.head = "tied";
       model.bias = Bias::kNone;
       model.dropout = 0.25;
     }},
    {"language_without_positions", kLayer, "gpt",
     [](ModelConfig& model) {
       model.vocabulary = 41;
       model.positions = Positions::kNone;
     }},
    {"language_llama_tied", kLayer, "llama",
     [](ModelConfig& model) {
       model.vocabulary = 41;
       model.head = "tied";
     }},
};

/// A GPU sums eight-bit products in fewer bits than the step in double.
std::vector<const char*> recipes_here() {
  return support::test_device() == "cpu" ? support::recipe_names() : std::vector<const char*>{"bf16"};
}

using Point = std::tuple<Form, const char*>;
class ReferenceStep : public ::testing::TestWithParam<Point> {};

TEST_P(ReferenceStep, EqualsTheLayersStep) {
  const auto& [form, recipe] = GetParam();
  CellConfig cell = support::small_cell(recipe, form.form, form.layer);
  cell.device = support::test_device();
  form.change(cell.model);
  cell.model.seq *= cell.model.layer == "grouped_linear" ? 8 : 1;  // a block of tokens for each expert
  cell.training.learning_rate = 0.05;                              // biases and slopes of norms move away from 0 and 1
  cell.training.param_dtype = "f32";
  if (cell.model.vocabulary > 0) cell.training.loss = "cross_entropy";
  cell.measure = {"reference"};
  const ArmResult result = measure_arm(cell, Arm::kAfter);
  const MetricValue& faults = result.metrics.at("reference.faults");
  EXPECT_EQ(faults.value, 0.0) << faults.reason;
  EXPECT_GE(result.metrics.at("reference.tensors").value.value_or(0.0), 3.0 * 4.0);
}

INSTANTIATE_TEST_SUITE_P(Forms, ReferenceStep,
                         ::testing::Combine(::testing::ValuesIn(kForms), ::testing::ValuesIn(recipes_here())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param);
                         });

}  // namespace
}  // namespace fp8lab
