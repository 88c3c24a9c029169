#include "harness/cli/plan/model_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/predict/predict.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

// Models from config.json: their numbers of parameters are the published ones.
namespace fp8lab {
namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 131072, "hidden_act": "silu", "rope_scaling": {"factor": 8.0}, "attention_bias": false,
  "tie_word_embeddings": false, "sliding_window": null})";
constexpr const char* kQwen = R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
  "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
  "max_position_embeddings": 32768, "sliding_window": 131072, "use_sliding_window": false})";
constexpr const char* kMistral = R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000,
  "max_position_embeddings": 4096, "sliding_window": 4096})";
constexpr const char* kQwen3 = R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
  "max_position_embeddings": 40960, "attention_bias": false, "tie_word_embeddings": true, "sliding_window": null,
  "use_sliding_window": false, "layer_types": ["full_attention"]})";
constexpr const char* kNemo = R"({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
  "max_position_embeddings": 131072, "sliding_window": null})";
constexpr const char* kMixtral = R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "hidden_act": "silu",
  "max_position_embeddings": 32768, "num_experts_per_tok": 2, "num_local_experts": 8, "sliding_window": null})";
constexpr const char* kQwen3Moe = R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
  "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
  "max_position_embeddings": 40960, "attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "moe_intermediate_size": 768, "norm_topk_prob": true, "num_experts": 128, "num_experts_per_tok": 8,
  "sliding_window": null, "use_sliding_window": false})";
constexpr const char* kGptOss = R"({"model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 4,
  "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
  "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 4,
  "num_key_value_heads": 8, "num_local_experts": 32, "rope_scaling": {"factor": 32.0, "rope_type": "yarn"},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
  "tie_word_embeddings": false, "vocab_size": 201088})";
constexpr const char* kDeepSeek = R"({"model_type": "deepseek_v3", "attention_bias": false, "first_k_dense_replace": 3,
  "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"factor": 40},
  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
  "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_ctx": 1024,
  "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"})";

FileModel read_file(const std::string& text) {
  const sample::TemporaryDirectory folder;
  const auto file = folder / "Some-Model" / "config.json";
  std::filesystem::create_directory(file.parent_path());
  std::ofstream(file) << text;
  return read_model_file(file.string());
}

CellConfig read(const std::string& text) { return read_file(text).cell; }

std::string file_error(const std::string& text) {
  return support::error_of([&] { read(text); });
}

std::string changed(std::string text, const std::string& was, const std::string& is) {
  return text.replace(text.find(was), was.size(), is);
}

std::int64_t parameters(CellConfig model) {
  model.training.param_dtype = ParamDType::kF32;
  return static_cast<std::int64_t>(estimate(model, Arm::kAfter).figures.at("memory.weight_bytes")) / 4;
}

TEST(ModelFile, OfAKnownModel_IsTheKnownModel) {
  const CellConfig model = read(kLlama);
  EXPECT_EQ(model.scenario, "Some-Model");
  const CellConfig known = find_model("llama3.1-8b").cell();
  EXPECT_EQ(parameters(model), 8030261248);
  EXPECT_EQ(model.model.seq, 8192);
  EXPECT_EQ(estimate(model, Arm::kAfter).figures, estimate(known, Arm::kAfter).figures);
}

TEST(ModelFile, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(parameters(read(kGpt2)), 124439808);
  EXPECT_EQ(parameters(read(kMistral)), 7241732096);
  EXPECT_EQ(parameters(read(kQwen)), 7615616512);
  EXPECT_EQ(parameters(read(kQwen3)), 596049920);
  EXPECT_EQ(parameters(read(changed(kQwen3, "\"head_dim\": 128, ", ""))), 596049920) << "128 by default";
  EXPECT_EQ(parameters(read(kNemo)), 12247782400);
  EXPECT_EQ(parameters(read(kMixtral)), 46702792704);
  EXPECT_EQ(parameters(read(kQwen3Moe)), 30532122624);
  EXPECT_EQ(parameters(read(kDeepSeek)), 671026419200);
  // Without layer_types every second layer has the window.
  const auto gpt_oss = [](const char* layers, const char* experts) {
    std::string text = changed(kGptOss, "\"num_hidden_layers\": 4", std::string("\"num_hidden_layers\": ") + layers);
    text = changed(text, "\"num_local_experts\": 32", std::string("\"num_local_experts\": ") + experts);
    return read(changed(text,
                        "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                        "\"full_attention\"]",
                        "\"layer_types\": null"));
  };
  EXPECT_EQ(parameters(gpt_oss("24", "32")), 20914757184);
  EXPECT_EQ(parameters(gpt_oss("36", "128")), 116829156672);
  EXPECT_EQ(estimate(gpt_oss("24", "32"), Arm::kAfter).figures,
            estimate(find_model("gpt-oss-20b").cell(), Arm::kAfter).figures);
}

TEST(ModelFile, OfGptOss_HasItsLayers) {
  const ModelConfig model = read(kGptOss).model;
  EXPECT_EQ(model.window, 128);
  EXPECT_EQ(model.window_every, 2);
  EXPECT_TRUE(model.attention_sinks);
  EXPECT_EQ(model.swiglu_limit, 7.0);
  EXPECT_EQ(model.bias, Bias::kAll);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.top_k, 4);
  const auto windows = [](const char* of_layers) {
    return read(changed(kGptOss, "\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"",
                        of_layers))
        .model;
  };
  EXPECT_EQ(
      windows(R"("sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention")").window_every, 1);
  EXPECT_EQ(windows(R"("sliding_attention", "full_attention", "full_attention", "sliding_attention")").window_every, 3);
  EXPECT_EQ(windows(R"("sliding_attention", "full_attention", "full_attention", "full_attention")").window_every, 4);
  for (const char* other : {R"("full_attention", "sliding_attention", "full_attention", "sliding_attention")",
                            R"("sliding_attention", "sliding_attention", "full_attention", "full_attention")",
                            R"("sliding_attention", "full_attention", "full_attention")"})
    EXPECT_NE(support::error_of([&] { windows(other); }).find("windows only of every Nth of the 4 layers"),
              std::string::npos)
        << other;
}

TEST(ModelFile, OfDeepSeek_HasTheKeysOfTheKnownModelAndNamesWhatIsLeftOut) {
  CellConfig model = read(kDeepSeek), known = find_model("deepseek-v3").cell();
  model.model.seq = known.model.seq;  // 4096 tokens in its training
  for (const Key& key : keys())
    if (key.section() == "model") {
      EXPECT_EQ(to_text(key.get(model)), to_text(key.get(known))) << key.path;
    }
  EXPECT_EQ(model.model.expert_groups, 8);
  EXPECT_EQ(model.model.top_groups, 4);
  EXPECT_EQ(read_file(kDeepSeek).left_out, "modules that predict further tokens (`num_nextn_predict_layers`)");
  EXPECT_EQ(read_file(changed(kDeepSeek, "\"num_nextn_predict_layers\": 1", "\"aux_loss_alpha\": 0.001")).left_out,
            "the auxiliary loss of routers (`aux_loss_alpha`)");
  EXPECT_EQ(read_file(kQwen3Moe).left_out, "");
  // In transformers the loss requires output_router_logits.
  const std::string coefficient = changed(kMixtral, "{", "{\"router_aux_loss_coef\": 0.02, ");
  EXPECT_EQ(read_file(coefficient).left_out, "");
  const std::string left_out = read_file(changed(coefficient, "{", "{\"output_router_logits\": true, ")).left_out;
  EXPECT_NE(left_out.find("the auxiliary loss of routers (`router_aux_loss_coef`), unless `--set router_aux_loss=N`"),
            std::string::npos)
      << left_out;
  // As Moonlight: one group.
  const CellConfig one =
      read(changed(changed(kDeepSeek, "\"n_group\": 8", "\"n_group\": 1"), "\"topk_group\": 4", "\"topk_group\": 1"));
  EXPECT_EQ(one.model.expert_groups, 0);
}

TEST(ModelFile, HasAWindowThatIsShorterThanASequence) {
  EXPECT_EQ(read(kMistral).model.window, 0) << "as long as a sequence";
  EXPECT_EQ(read(changed(kMistral, "4096, \"sliding", "32768, \"sliding")).model.window, 4096);
  EXPECT_EQ(read(kQwen).model.window, 0) << "not used";
  const std::string every = changed(kQwen3, "[\"full_attention\"]", "[\"sliding_attention\"]");
  EXPECT_EQ(read(changed(every, "\"sliding_window\": null", "\"sliding_window\": 1024")).model.window, 1024);
}

TEST(ModelFile, HasTheLayersOfTheKnownModel) {
  const auto equals = [](const CellConfig& model, const char* name) {
    const CellConfig known = find_model(name).cell();
    EXPECT_EQ(model.model.head_dim, known.model.head_dim) << name;
    EXPECT_EQ(model.model.qk_norm, known.model.qk_norm) << name;
    EXPECT_EQ(model.model.bias, known.model.bias) << name;
    EXPECT_EQ(estimate(model, Arm::kAfter).figures, estimate(known, Arm::kAfter).figures) << name;
  };
  equals(read(kQwen), "qwen2.5-7b");
  equals(read(kQwen3), "qwen3-0.6b");
  equals(read(kNemo), "mistral-nemo-12b");
  equals(read(kMixtral), "mixtral-8x7b");
  equals(read(kQwen3Moe), "qwen3-30b-a3b");
  // A head_dim of hidden / heads is left out: the figures of more libraries cover such models.
  EXPECT_EQ(read(changed(kLlama, "{\"model", "{\"head_dim\": 128, \"model")).model.head_dim, 0);
}

TEST(ModelFile, LayersThatThisProgramLacks_AreRefusedByFileAndKey) {
  const auto refused = [](const std::string& text, const std::string& why) {
    const std::string error = file_error(text);
    EXPECT_NE(error.find("Some-Model/config.json: "), std::string::npos) << error;
    EXPECT_NE(error.find(why), std::string::npos) << error;
  };
  refused(changed(kLlama, "\"llama\"", "\"gemma2\""),
          "`model_type` is gemma2, which has norms behind attention and MLP, and caps of logits; "
          "this program's layers lack that");
  refused(changed(kLlama, "\"llama\"", "\"bert\""),
          "`model_type` must be one of gpt2, llama, mistral, qwen2, qwen3, gemma, mixtral, qwen3_moe, gpt_oss or "
          "deepseek_v3, whose layers this program has, but is the text \"bert\"");
  refused(changed(kLlama, "\"llama\"", "\"deepseek_v2\""), "groups of experts that are chosen by a softmax");
  refused(changed(kDeepSeek, "\"sigmoid\"", "\"softmax\""), "`scoring_func` must be sigmoid");
  refused(changed(kDeepSeek, "\"noaux_tc\"", "\"greedy\""), "`topk_method` must be noaux_tc");
  refused(changed(kDeepSeek, "\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2"), "`moe_layer_freq` is not 1");
  refused(changed(kDeepSeek, "\"q_lora_rank\": 1536", "\"q_lora_rank\": null"), "deepseek_v3 without q_lora_rank");
  refused(changed(kDeepSeek, "\"num_key_value_heads\": 128", "\"num_key_value_heads\": 8"),
          "`num_key_value_heads` differs from num_attention_heads");
  refused(changed(kDeepSeek, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"), "`norm_topk_prob` is false");
  refused(changed(kDeepSeek, "\"topk_group\": 4", "\"topk_group\": 9"), "`topk_group`");
  refused(changed(kDeepSeek, "\"v_head_dim\": 128, ", ""), "v_head_dim");
  refused(changed(kLlama, "\"llama\"", "\"qwen2_moe\""),
          "`model_type` is qwen2_moe, which has a gate of the shared expert");
  refused(changed(kQwen3Moe, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"), "`norm_topk_prob` is false");
  refused(changed(kQwen3Moe, "\"norm_topk_prob\": true, ", ""), "without norm_topk_prob: true");
  refused(changed(kQwen3Moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2"),
          "`decoder_sparse_step` is not 1");
  refused(changed(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [3]"),
          "`mlp_only_layers` names layers with one MLP");
  refused(changed(kMixtral, "\"num_experts_per_tok\": 2, ", ""), "num_experts_per_tok");
  refused(changed(kGptOss, "\"attention_bias\": true", "\"attention_bias\": false"), "`attention_bias` is false");
  refused(changed(kGptOss, "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 0"), "`swiglu_limit` must be a number above 0");
  refused(changed(kLlama, "{\"model", "{\"kv_lora_rank\": 512, \"model"),
          "`kv_lora_rank` is not null, and this program reads low-rank keys and values (MLA) only of deepseek_v3");
  const std::string window = changed(kQwen, "\"sliding_window\": 131072, \"use_sliding_window\": false",
                                     "\"sliding_window\": 4096, \"use_sliding_window\": true");
  refused(changed(window, "\"sliding_window\"", "\"max_window_layers\": 14, \"sliding_window\""),
          "`max_window_layers` is 14, the layers without a window");
  const std::string some = changed(kQwen3, "[\"full_attention\"]", "[\"full_attention\", \"sliding_attention\"]");
  refused(some, "`layer_types` has sliding_attention, but the file has no sliding_window");
  refused(changed(some, "\"sliding_window\": null", "\"sliding_window\": 4096"),
          "`layer_types` has layers with a window and others");
  refused(changed(kLlama, "{\"model", "{\"num_local_experts\": 8, \"model"), "`num_local_experts` is above 1");
  refused(changed(kLlama, "\"num_attention_heads\": 32", "\"num_attention_heads\": 24"),
          "`num_attention_heads` does not divide hidden_size");
  refused(changed(kLlama, "\"silu\"", "\"gelu\""), "`hidden_act` must be silu");
  refused(changed(kLlama, "\"attention_bias\": false", "\"attention_bias\": true"), "`attention_bias` is true");
  refused(changed(kLlama, "\"vocab_size\": 128256,", ""), "vocab_size");
  refused(changed(kLlama, "128256", "-1"), "`vocab_size` must be");
  refused("[]", "config.json of a Hugging Face model");
  refused("{", "config.json of a Hugging Face model");
  EXPECT_TRUE(is_model_file("config.json") && is_model_file("a/b") && !is_model_file("llama3-8b"));
  EXPECT_THROW(read_model_file("/nowhere/config.json"), Error);
}

}  // namespace
}  // namespace fp8lab
