#include "harness/cli/plan/model_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/predict/predict.h"
#include "harness/temporary_directory.h"

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
  "max_position_embeddings": 32768, "sliding_window": 4096})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_ctx": 1024,
  "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"})";

PlannedModel read(const std::string& text) {
  const sample::TemporaryDirectory folder;
  const auto file = folder / "Some-Model" / "config.json";
  std::filesystem::create_directory(file.parent_path());
  std::ofstream(file) << text;
  return read_model_file(file.string());
}

std::string file_error(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string changed(std::string text, const std::string& was, const std::string& is) {
  return text.replace(text.find(was), was.size(), is);
}

std::int64_t parameters(const PlannedModel& model) {
  return static_cast<std::int64_t>(estimate(model.cell, Arm::kAfter).figures.at("memory.weight_bytes")) / 2;
}

TEST(ModelFile, OfAKnownModel_IsTheKnownModel) {
  PlannedModel model = read(kLlama);
  EXPECT_EQ(model.cell.scenario, "Some-Model");
  EXPECT_TRUE(model.notes.empty());
  const CellConfig known = find_model("llama3.1-8b").cell();
  EXPECT_EQ(parameters(model), 8030261248);
  EXPECT_EQ(model.cell.model.seq, 8192);
  EXPECT_EQ(estimate(model.cell, Arm::kAfter).figures, estimate(known, Arm::kAfter).figures);
}

TEST(ModelFile, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(parameters(read(kGpt2)), 124439808);
  EXPECT_EQ(parameters(read(kMistral)), 7241732096);
  const PlannedModel qwen = read(kQwen);
  EXPECT_EQ(parameters(qwen), 7615616512 - 129024);
  ASSERT_EQ(qwen.notes.size(), 1u);
  EXPECT_EQ(qwen.notes[0], "left out: the biases of Q, K and V, 129024 parameters");
  EXPECT_EQ(read(kMistral).notes.at(0), "attention reads all tokens, not a window of 4096");
}

TEST(ModelFile, LayersThatThisProgramLacks_AreRefusedByFileAndKey) {
  const auto refused = [](const std::string& text, const std::string& why) {
    const std::string error = file_error(text);
    EXPECT_NE(error.find("Some-Model/config.json: "), std::string::npos) << error;
    EXPECT_NE(error.find(why), std::string::npos) << error;
  };
  refused(changed(kLlama, "\"llama\"", "\"gemma2\""),
          "`model_type` must be one of gpt2, llama, mistral or qwen2, whose layers this program has, but is the text "
          "\"gemma2\"");
  refused(changed(kLlama, "{\"model", "{\"num_local_experts\": 8, \"model"), "`num_local_experts` is above 1");
  refused(changed(kLlama, "{\"model", "{\"head_dim\": 64, \"model"), "`head_dim` is not hidden_size / ");
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
