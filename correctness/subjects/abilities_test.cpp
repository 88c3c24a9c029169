#include "harness/subjects/abilities.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "harness/cell/file_keys.h"
#include "harness/cell/keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_codec.h"
#include "harness/temporary_directory.h"
#include "support/paths.h"

// What libraries can honour, as the program and as the worker read it.
namespace fp8lab {
namespace {

const std::string kFile = paths::kWorkerFolder + std::string("/fp8lab_subjects/abilities.json");

CellConfig cell_of(std::string_view subject) {
  CellConfig cell;
  cell.scenario = cell.id = "test";
  cell.subject = subject;
  cell.model.layer = "layernorm_mlp";
  cell.model.hidden = cell.model.seq = 32;
  cell.training.optimizer = "adam";
  cell.training.master_weights = "f32";
  cell.measure = {"memory"};
  if (subject == "transformer_engine") cell.device = "cuda";
  return cell;
}

/// The key that is refused, or "".
std::string refusal(CellConfig cell, const std::vector<std::pair<std::string, std::string>>& keys = {},
                    Arm arm = Arm::kAfter) {
  for (const auto& [path, text] : keys) {
    const Key* key = find_key(path);
    key->set(cell, *value_of(*key, text, bundled_vocabulary()));
  }
  const std::string reason = Abilities(kFile).why_unable(cell, arm);
  return reason.substr(0, reason.find(':'));
}

std::vector<std::string> values_of(const Key& key) {
  switch (key.type) {
    case KeyType::kSwitch: return {"true", "false"};
    case KeyType::kWord: return key.words(bundled_vocabulary());
    case KeyType::kInteger:
      return key.is_size ? std::vector<std::string>{"0", "80GiB"}
                         : std::vector<std::string>{key.low > 1.0 ? "3" : "1", "2"};
    case KeyType::kNumber: return {key.low > 0.0 ? "1" : "0", "0.25", "0.9"};
    case KeyType::kMesh: return {"2", "2x1"};
    case KeyType::kText: return {"2.14.1", "raise"};
    case KeyType::kFile: return {"corpus.txt"};
  }
  return {};
}

TEST(Abilities, TheProgramAndTheWorkerAgreeOnEveryValueOfEveryKey) {
  const sample::TemporaryDirectory folder;
  const Abilities abilities(kFile);
  std::string requests;
  std::vector<std::string> expected;
  const auto add = [&](const CellConfig& cell) {
    for (const Arm arm : {Arm::kAfter, Arm::kBf16}) {
      requests += fmt::format("{}\t{}\n", arm == Arm::kAfter ? "after" : "bf16", cell_to_json(cell));
      expected.push_back(abilities.why_unable(cell, arm));
    }
  };
  for (const SubjectRow& subject : kSubjects) {
    if (subject.name == "own" || subject.name == "script") continue;  // the worker runs neither
    for (const char* recipe : {"bf16", "current"})
      for (const int ranks : {1, 2})
        for (const char* optimizer : {"adam", "foreach_adam"})
          for (const Key& key : keys())
            for (const std::string& text : values_of(key)) {
              CellConfig cell = cell_of(subject.name);
              cell.training.recipe = recipe;
              cell.ranks = ranks;
              cell.training.optimizer = optimizer;
              if (key.path == "subject") continue;
              key.set(cell, *value_of(key, text, bundled_vocabulary()));
              add(cell);
            }
    for (const char* group : {"memory", "reference", "twin", "parity"}) {
      CellConfig cell = cell_of(subject.name);
      cell.measure = {"memory", group};
      cell.model.dropout = 0.1;
      add(cell);
    }
  }
  sample::write(folder / "requests", requests);
  sample::write(folder / "ask.py",
                "import json, sys\n"
                "from fp8lab_subjects import abilities, cells\n"
                "for line in open(sys.argv[1]):\n"
                "    arm, _, text = line.rstrip('\\n').partition('\\t')\n"
                "    print(abilities.unable(cells.read(arm, json.loads(text))))\n");
  const std::string command =
      fmt::format("PYTHONPATH='{}' python3 -B '{}' '{}' > '{}'", paths::kWorkerFolder, (folder / "ask.py").string(),
                  (folder / "requests").string(), (folder / "answers").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::istringstream answers(sample::read(folder / "answers"));
  std::string answer;
  std::size_t refused = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::getline(answers, answer));
    EXPECT_EQ(answer, expected[i]);
    refused += !answer.empty();
  }
  EXPECT_GT(refused, expected.size() / 4);
  EXPECT_LT(refused, expected.size());
}

TEST(Abilities, PyTorchTrainsInBf16AndSkipsEachKeyThatItsWorkerDoesNotHonour) {
  const CellConfig torch = cell_of("torch");
  EXPECT_EQ(refusal(torch), "");
  EXPECT_EQ(refusal(torch, {{"recipe", "current"}}), "training.recipe");
  EXPECT_EQ(refusal(torch, {{"recipe", "current"}}, Arm::kBf16), "");
  for (const auto& [key, value] : {std::pair{"training.resume_at", "2"},
                                   {"training.validation_batches", "2"},
                                   {"training.weight_average", "true"},
                                   {"context_parallel", "2"},
                                   {"model.dropout", "0.1"},
                                   {"capacity", "80GiB"},
                                   {"training.moments", "bf16"},
                                   {"training.data", "stress"},
                                   {"model.op_fuser", "mlp"}})
    EXPECT_EQ(refusal(torch, {{key, value}}), key);
  EXPECT_EQ(refusal(torch, {{"checkpoint", "full"}}), "");
}

TEST(Abilities, TransformerEngineHasNoRemaindersOfFp8Weights) {
  const CellConfig engine = cell_of("transformer_engine");
  EXPECT_EQ(refusal(engine, {{"recipe", "delayed"}, {"master_weights", "remainder"}}), "");
  EXPECT_EQ(refusal(engine, {{"recipe", "delayed"}, {"master_weights", "remainder"}, {"quantized_weights", "true"}}),
            "training.master_weights");
  EXPECT_EQ(refusal(engine, {{"recipe", "delayed"}, {"master_weights", "remainder"}, {"quantized_weights", "true"}},
                    Arm::kBf16),
            "");
}

TEST(Abilities, OptimizersOfPyTorchHaveEveryKeyOfPyTorch) {
  const CellConfig engine = cell_of("transformer_engine");
  for (const auto& [key, value] : {std::pair{"training.beta2", "0.95"},
                                   {"training.warmup_steps", "3"},
                                   {"training.decay_only_matrices", "true"},
                                   {"training.clip_norm", "1"}}) {
    EXPECT_EQ(refusal(engine, {{key, value}}), key);
    EXPECT_EQ(refusal(engine, {{key, value}, {"optimizer", "foreach_adam"}}), "");
  }
  EXPECT_EQ(refusal(engine, {{"clip_norm", "1"}, {"optimizer", "foreach_adam"}, {"ranks", "2"}}), "training.clip_norm");
}

TEST(Abilities, TransformerEngineDrawsRandomNumbersOfItsOwnWhichNoValuesAreComparedUnder) {
  CellConfig engine = cell_of("transformer_engine");
  EXPECT_EQ(refusal(engine, {{"dropout", "0.1"}}), "");
  EXPECT_EQ(refusal(engine, {{"ranks", "2"}, {"deferred_init", "true"}}), "");
  engine.measure = {"memory", "parity"};
  EXPECT_EQ(refusal(engine, {{"dropout", "0.1"}}), "model.dropout");
  EXPECT_EQ(refusal(engine, {{"ranks", "2"}, {"deferred_init", "true"}}), "training.deferred_init");
  EXPECT_EQ(refusal(cell_of("torch"), {{"dropout", "0.1"}}), "model.dropout");
}

TEST(Abilities, AttentionRunsInEightBitsUnderRecipesOfTensors) {
  const CellConfig engine = cell_of("transformer_engine");
  for (const char* recipe : {"delayed", "current"})
    EXPECT_EQ(refusal(engine, {{"recipe", recipe}, {"fp8_attention", "true"}}), "");
  EXPECT_EQ(refusal(engine, {{"recipe", "block"}, {"fp8_attention", "true"}}), "training.fp8_attention");
  EXPECT_EQ(refusal(engine, {{"recipe", "block"}, {"fp8_attention", "true"}}, Arm::kBf16), "");
  EXPECT_EQ(refusal(cell_of("torch"), {{"fp8_attention", "true"}}), "training.fp8_attention");
}

TEST(Abilities, ModelsAreBuiltInFullOrByShardsAsTheLibraryDoes) {
  const CellConfig engine = cell_of("transformer_engine"), torchao = cell_of("torchao");
  EXPECT_EQ(refusal(engine, {{"ranks", "2"}, {"deferred_init", "false"}}), "");
  EXPECT_EQ(refusal(torchao, {{"ranks", "2"}, {"deferred_init", "false"}}), "training.deferred_init");
  EXPECT_EQ(refusal(torchao, {{"ranks", "2"}, {"deferred_init", "true"}}), "");
  EXPECT_EQ(refusal(torchao, {{"recipe", "current"}, {"epsilon", "0.001"}}), "training.recipe_options.epsilon");
  EXPECT_EQ(refusal(engine, {{"bias", "false"}}), "model.bias");
  EXPECT_EQ(refusal(torchao, {{"bias", "false"}}), "");
  EXPECT_EQ(refusal(engine, {{"head_dim", "32"}}), "");
  EXPECT_EQ(refusal(engine, {{"bias", "qkv"}}), "model.bias");
  EXPECT_EQ(refusal(engine, {{"qk_norm", "true"}}), "model.qk_norm");
  for (const auto& library : {engine, torchao}) EXPECT_EQ(refusal(library, {{"window", "8"}}), "model.window");
  EXPECT_EQ(refusal(torchao, {{"head_dim", "32"}, {"bias", "qkv"}, {"qk_norm", "true"}}), "");
  for (const CellConfig& library : {torchao, engine}) {
    EXPECT_EQ(refusal(library, {{"layer", "transformer_layer"}, {"kv_rank", "32"}}), "model.kv_rank");
    EXPECT_EQ(refusal(library, {{"attention_sinks", "true"}}), "model.attention_sinks");
    EXPECT_EQ(refusal(library, {{"layer", "layernorm_mlp"}, {"swiglu_limit", "7"}}), "model.swiglu_limit");
  }
  EXPECT_EQ(refusal(engine, {{"layer", "grouped_linear"}, {"experts", "8"}}), "");
}

TEST(Abilities, MixturesOfExpertsAreThoseThatTheWorkerBuilds) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const auto of_torch = [](Keys keys) {
    for (const auto& key : Keys{{"layer", "transformer_layer"}, {"form", "llama"}, {"top_k", "2"}}) keys.push_back(key);
    return refusal(cell_of("torch"), keys);
  };
  EXPECT_EQ(of_torch({}), "");
  EXPECT_EQ(of_torch({{"router", "sigmoid"}, {"shared_experts", "2"}, {"dense_layers", "1"}, {"bias", "qkv"}}), "");
  EXPECT_EQ(of_torch({{"bias", "true"}, {"swiglu_limit", "7"}}), "");
  EXPECT_EQ(of_torch({{"attention_sinks", "true"}, {"window", "8"}, {"window_every", "2"}}), "");
  EXPECT_EQ(of_torch({{"router", "sigmoid"}, {"expert_groups", "2"}, {"top_groups", "1"}}), "");
  EXPECT_EQ(of_torch({{"router", "sigmoid"}, {"router_bias_rate", "0.001"}}), "");
  EXPECT_EQ(of_torch({{"router_aux_loss", "0.01"}}), "");
  EXPECT_EQ(of_torch({{"ranks", "2"}, {"expert_parallel", "2"}}), "");
  const CellConfig engine = cell_of("transformer_engine");
  EXPECT_EQ(refusal(engine, {{"layer", "transformer_layer"}, {"top_k", "2"}}), "model.top_k");
  EXPECT_EQ(refusal(engine, {{"ranks", "2"}, {"expert_parallel", "2"}}), "expert_parallel");
}

// FP8 of torchao's grouped products runs on GPUs only; MXFP8 on a CPU, or on GPUs newer than Hopper.
TEST(Abilities, MixturesOfTorchaoAreThoseThatItsGroupedProductsCompute) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const auto of_torchao = [](const char* device, const char* recipe, Keys keys, Arm arm = Arm::kAfter) {
    for (const auto& key : Keys{{"layer", "transformer_layer"}, {"form", "llama"}, {"top_k", "2"}}) keys.push_back(key);
    keys.emplace_back("device", device);
    keys.emplace_back("recipe", recipe);
    return refusal(cell_of("torchao"), keys, arm);
  };
  EXPECT_EQ(of_torchao("cpu", "bf16", {}), "");
  EXPECT_EQ(of_torchao("cpu", "mxfp8", {}), "");
  EXPECT_EQ(of_torchao("cpu", "mxfp8", {{"ranks", "2"}, {"expert_parallel", "2"}}), "");
  EXPECT_EQ(of_torchao("cpu", "current", {}), "model.top_k");
  EXPECT_EQ(of_torchao("cpu", "current", {}, Arm::kBf16), "");
  EXPECT_EQ(of_torchao("cuda", "current", {{"ranks", "2"}, {"expert_parallel", "2"}}), "");
  EXPECT_EQ(of_torchao("cuda", "mxfp8", {}), "training.recipe");
  EXPECT_EQ(of_torchao("cuda", "mxfp8", {{"arch", "blackwell"}}), "");
  EXPECT_EQ(of_torchao("cuda", "current", {{"ranks", "2"}, {"quantized_weights", "true"}}), "model.top_k");
  EXPECT_EQ(of_torchao("cpu", "mxfp8", {{"ranks", "2"}, {"quantized_weights", "true"}}), "training.quantized_weights");
  EXPECT_EQ(of_torchao("cpu", "mxfp8", {{"checkpoint", "selective"}}), "training.checkpoint");
  EXPECT_EQ(of_torchao("cpu", "bf16", {{"bias", "true"}}), "model.top_k");
}

TEST(Abilities, ATrainingIsResumedOnlyForItsValues) {
  CellConfig engine = cell_of("transformer_engine"), torch = cell_of("torch");
  engine.measure = torch.measure = {"parity", "twin"};
  EXPECT_EQ(refusal(engine, {{"resume_at", "2"}}), "");
  EXPECT_EQ(refusal(torch, {{"resume_at", "2"}}), "");
  EXPECT_EQ(refusal(engine, {{"dropout", "0.1"}}), "model.dropout");
  engine.measure = {"memory", "parity"};
  EXPECT_EQ(refusal(engine, {{"resume_at", "2"}}), "training.resume_at");
}

TEST(Abilities, TransformerEngineHasOptionsOfRecipesAndCachedWeights) {
  const CellConfig engine = cell_of("transformer_engine");
  EXPECT_EQ(refusal(engine, {{"recipe", "current"}, {"epsilon", "0.001"}}), "");
  EXPECT_EQ(refusal(engine, {{"recipe", "delayed"}, {"amax_history_length", "16"}}), "");
  EXPECT_EQ(refusal(engine, {{"recipe", "mxfp8"}, {"scale_rounding", "floor"}}),
            "training.recipe_options.scale_rounding");
  EXPECT_EQ(refusal(engine, {{"recipe", "current"}, {"cache_weights", "true"}}), "");
  EXPECT_EQ(refusal(cell_of("torchao"), {{"recipe", "current"}, {"cache_weights", "true"}}), "training.cache_weights");
}

TEST(Abilities, AWorkerWithoutTheFileHasNoRules) {
  EXPECT_EQ(Abilities("/nonexistent/abilities.json").why_unable(cell_of("torch"), Arm::kAfter), "");
}

}  // namespace
}  // namespace fp8lab
