#include "harness/cell/read_keys.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/measure.h"
#include "harness/scenario/rules.h"
#include "harness/temporary_directory.h"
#include "nn/layer_table.h"
#include "recipe/recipe.h"
#include "support/cells.h"

// Every key with every layer, recipe and optimizer: a key that a cell reads changes a figure of a small run, and a key
// that it does not read changes none.
namespace fp8lab {
namespace {

/// Keys that no figure of a small run on the host shows, and why.
const std::map<std::string, std::string> kNotTried{
    {"device", "chooses what runs the cell"},
    {"arch", "`device: cuda` skips cells of another architecture, whatever the recipe"},
    {"subject", "chooses what runs the cell; other rows need a library"},
    {"versions.before", "a library's; ReadKeys.SubjectsReadTheirOwnKeys"},
    {"versions.after", "a library's; ReadKeys.SubjectsReadTheirOwnKeys"},
    {"capacity", "only a step that needs more memory shows it; capacity_test.cpp"},
    {"control", "changes the before arm; controls_test.cpp"},
    {"fix", "changes the before arm; every_fix_test.cpp"},
    {"training.deterministic", "only a GPU's kernels may add in another order"},
};

/// Keys that a cell refuses although a figure changes, and why.
const std::map<std::string, std::string> kRefusedAnyway{
    {"training.recipe", "a norm casts nothing, but a recipe with a history has figures about scales"},
    {"training.weight_average", "without an optimizer it is a second copy of weights that never change"},
};

/// Values to try instead of the value that the cell has.
std::vector<std::string> alternatives(const Key& key, const CellConfig& cell) {
  static const std::map<std::string_view, std::vector<std::string>> kNamed{
      {"mesh", {"2x1", "1"}},
      {"ranks", {"2"}},
      {"context_parallel", {"2"}},
      {"model.heads", {"1", "4"}},
      {"model.kv_heads", {"1"}},
      {"model.head_dim", {"32"}},
      {"model.experts", {"2"}},
      {"model.top_k", {"2"}},
      {"model.expert_ffn", {"256"}},
      {"model.dense_layers", {"1"}},
      {"model.expert_groups", {"2"}},
      {"model.top_groups", {"1", "3"}},
      {"model.router_bias_rate", {"0"}},
      {"model.router_aux_loss", {"0"}},
      {"model.ffn", {"256"}},
      {"model.vocabulary", {"96"}},
      {"training.final_learning_rate", {"0.04"}},
      {"training.warmup_steps", {"1"}},
      {"training.decay_steps", {"2"}},
      {"training.weight_decay", {"0.5"}},
      {"training.clip_norm", {"0.001"}},
      {"training.resume_at", {"1"}},
      {"training.initial_history_length", {"2"}},
      {"training.recipe_options.amax_history_length", {"1", "2"}},
      {"training.recipe_options.margin", {"2"}},
      {"training.recipe_options.epsilon", {"1000"}},
  };
  const Vocabulary& vocabulary = bundled_vocabulary();
  const Value now = key.get(cell);
  std::vector<std::string> out;
  if (const auto row = kNamed.find(key.path); row != kNamed.end()) {
    out = row->second;
  } else if (key.type == KeyType::kSwitch) {
    out = {"true", "false"};
  } else if (key.type == KeyType::kWord) {
    out = key.words(vocabulary);
  } else if (const auto* number = std::get_if<std::int64_t>(&now)) {
    out = {std::to_string(*number == 0 ? 1 : 2 * *number)};
  } else if (const auto* real = std::get_if<double>(&now)) {
    out = {to_text(Value{*real == 0.0 ? 0.25 : *real / 2})};
  }
  std::erase(out, to_text(now));
  return out;
}

/// What the run shows: losses, bytes, collectives, allocations; empty if it fails.
std::string figures(CellConfig cell) {
  static std::map<std::string, std::string> known;
  cell.measure = {"memory", "traffic", "parity"};
  std::string id;
  for (const Key& key : keys()) id += to_text(key.get(cell)) + "|";
  if (const auto found = known.find(id); found != known.end()) return found->second;
  std::string out;
  try {
    const ArmResult result = measure_arm(cell, Arm::kAfter);
    out = result.values_hash + result.sequence_hash;
    for (const double loss : result.losses) out += fmt::format(",{}", loss);
    for (const ValidationLoss& one : result.validation_losses) out += fmt::format(";{}:{}", one.step, one.loss);
    for (const auto& [name, metric] : result.metrics)
      if (metric.value && !name.starts_with("parity.twin_")) out += fmt::format("|{}={}", name, *metric.value);
    if (result.status != "ok") out.clear();
  } catch (const Error&) {
    out.clear();
  }
  return known[id] = out;
}

struct Context {
  std::string name;
  std::function<void(CellConfig&)> set;
};

const std::vector<Context>& contexts() {
  static const sample::TemporaryDirectory kFolder;
  static const std::string kCorpus = (kFolder / "corpus.txt").string();
  static const std::string kOther = (kFolder / "other.txt").string();
  static const std::vector<Context> kContexts{
      {"plain", [](CellConfig& cell) { cell.training.weight_decay = 0.25; }},
      {"sharded", [](CellConfig& cell) { cell.ranks = 2; }},
      {"replicated",
       [](CellConfig& cell) {
         cell.ranks = 2;
         cell.sharding = Sharded::kDdp;
       }},
      {"cosine",
       [](CellConfig& cell) {
         cell.training.learning_rate_schedule = RateSchedule::kCosine;
         cell.training.warmup_steps = 1;
         cell.training.final_learning_rate = 0.01;
       }},
      {"language model",
       [](CellConfig& cell) {
         cell.model.vocabulary = 64;
         cell.training.loss = Loss::kCrossEntropy;
         cell.training.validation_batches = 1;
       }},
      {"text",
       [](CellConfig& cell) {
         std::string text;
         for (int i = 0; i < 40000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 23);
         sample::write(kCorpus, text);
         std::ranges::reverse(text);
         sample::write(kOther, text);
         cell.model.vocabulary = 256;
         cell.training.loss = Loss::kCrossEntropy;
         cell.training.data = Data::kText;
         cell.training.corpus = kCorpus;
       }},
      {"no optimizer", [](CellConfig& cell) { cell.training.optimizer = Optimizer::kNone; }},
      {"foreach_adam", [](CellConfig& cell) { cell.training.optimizer = Optimizer::kForeachAdam; }},
      {"sgd", [](CellConfig& cell) { cell.training.optimizer = Optimizer::kSgd; }},
      {"masters", [](CellConfig& cell) { cell.training.master_weights = Master::kF32; }},
      {"FP8 attention", [](CellConfig& cell) { cell.training.fp8_attention = true; }},
      {"FP8 weights",
       [](CellConfig& cell) {
         cell.training.quantized_weights = true;
         cell.training.master_weights = Master::kF32;
       }},
      {"parameters in f32", [](CellConfig& cell) { cell.training.param_dtype = ParamDType::kF32; }},
      {"micro-batches", [](CellConfig& cell) { cell.training.micro_batches = 2; }},
      {"bias", [](CellConfig& cell) { cell.model.bias = Bias::kAll; }},
      {"experts",
       [](CellConfig& cell) {
         cell.model.top_k = 1;
         cell.model.form = "llama";
       }},
      {"shared experts",
       [](CellConfig& cell) {
         cell.model.layers = cell.model.top_k = 2;
         cell.model.form = "llama";
         cell.model.shared_experts = 1;
         cell.model.router = RouterScore::kSigmoid;
       }},
      {"GPT-OSS",
       [](CellConfig& cell) {
         cell.model.layers = cell.model.top_k = 2;
         cell.model.form = "llama";
         cell.model.bias = Bias::kAll;
         cell.model.window = 8;
         cell.model.window_every = 2;
         cell.model.attention_sinks = true;
         cell.model.swiglu_limit = 0.01;
       }},
      {"balanced experts",
       [](CellConfig& cell) {
         cell.model.layers = cell.model.top_k = cell.model.top_groups = 2;
         cell.model.form = "llama";
         cell.model.router = RouterScore::kSigmoid;
         cell.model.experts = 8;
         cell.model.expert_groups = 4;
         cell.model.router_bias_rate = cell.model.router_aux_loss = 0.5;
       }},
      {"latents",
       [](CellConfig& cell) {
         cell.model.form = "llama";
         cell.model.kv_heads = 0;
         cell.model.head_dim = cell.model.rope_dim = cell.model.value_dim = 64;
         cell.model.q_rank = cell.model.kv_rank = 128;
       }},
      {"one expert", [](CellConfig& cell) { cell.model.experts = 1; }},
  };
  return kContexts;
}

bool is_valid(CellConfig cell) { return broken_rules(cell, bundled_vocabulary()).empty(); }

/// Tries every key in one cell.
void try_keys(const CellConfig& cell, const std::string& where) {
  if (!is_valid(cell)) return;
  for (const Key& key : keys()) {
    if (kNotTried.contains(std::string(key.path))) continue;
    bool read = false, changed = false, tried = false;
    std::vector<std::string> values = alternatives(key, cell);
    if (key.path == "training.corpus" && !cell.training.corpus.empty())
      values = {cell.training.corpus.substr(0, cell.training.corpus.rfind('/')) + "/other.txt"};
    for (const std::string& text : values) {
      CellConfig other = cell;
      key.set(other, *value_of(key, text, bundled_vocabulary()));
      if (key.path == "sharding" && is_sharded(other) == is_sharded(cell) &&
          is_replicated(other) == is_replicated(cell))
        continue;  // its default depends on `ranks`
      const std::optional<Unread> unread = why_unread(key, other, bundled_vocabulary());
      if (!unread && !is_valid(other)) continue;
      const bool differs = figures(other) != figures(cell);
      tried = true;
      read |= !unread;
      changed |= differs;
      if (unread && !kRefusedAnyway.contains(std::string(key.path))) {  // the runtime may refuse it too
        EXPECT_FALSE(differs && !figures(other).empty()) << where << ": " << key.path << ": " << text << " is refused ("
                                                         << unread->reason << "), and changes a figure";
      }
    }
    if (tried && read) {
      EXPECT_TRUE(changed) << where << ": " << key.path << " is read, and changes no figure";
    }
  }
}

CellConfig base(std::string_view recipe, std::string_view layer) {
  CellConfig cell = support::small_cell(recipe, "gpt", layer);
  cell.model.layers = 2;
  cell.model.kv_heads = 0;
  cell.model.ffn = 0;
  if (layer == "grouped_linear")  // groups of four experts are as large as blocks
    cell.model.seq = 4 * cell.model.hidden / cell.model.batch;
  cell.training.learning_rate = 0.05;
  if (is_norm(cell.model)) cell.training.recipe = "bf16";
  // Keys whose values no cell could have otherwise.
  if (cell.model.layer == "linear" || cell.model.layer == "grouped_linear" || cell.model.layer == "layernorm_linear" ||
      cell.model.layer == "layernorm_mlp" || is_norm(cell.model))
    cell.model.heads = 1;
  return cell;
}

class EveryLayer : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryLayer, AKeyIsReadIfAndOnlyIfItChangesAFigure) {
  const std::string layer(GetParam());
  for (const std::string_view recipe : {"bf16", "delayed"})
    try_keys(base(recipe, layer), fmt::format("{}, {}", layer, recipe));
  for (const Context& context : contexts()) {
    if (context.name != "FP8 attention" && context.name != "language model" && context.name != "bias" &&
        context.name != "one expert" && (context.name != "balanced experts" || layer != "transformer_layer"))
      continue;
    CellConfig cell = base("delayed", layer);
    context.set(cell);
    if (why_unread(*find_key("training.fp8_attention"), cell, bundled_vocabulary()))
      cell.training.fp8_attention = false;
    try_keys(cell, fmt::format("{}, {}", layer, context.name));
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, EveryLayer, testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const LayerRow& row : layer_table()) names.push_back(row.name);
                           return names;
                         }()),
                         [](const auto& row) { return std::string(row.param); });

class EveryRecipe : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryRecipe, AKeyIsReadIfAndOnlyIfItChangesAFigure) {
  for (const std::string_view layer : {"layernorm_linear"})
    for (const Context& context : contexts()) {
      CellConfig cell = base(GetParam(), layer);
      context.set(cell);
      std::vector<const Key*> given;
      for (const Key& key : keys()) given.push_back(&key);
      drop_unread(given, cell, bundled_vocabulary());
      try_keys(cell, fmt::format("{}, {}, {}", layer, GetParam(), context.name));
    }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const RecipeRow& row : recipes()) names.push_back(row.name);
                           return names;
                         }()),
                         [](const auto& row) { return std::string(row.param); });

TEST(ReadKeys, KeysOfRowsAreKeysOfScenarios) {
  for (const LayerRow& row : layer_table())
    for (const std::string_view path : row.keys) EXPECT_EQ(find_key(path)->path, path) << row.name;
  for (const RecipeRow& row : recipes())
    for (const std::string_view path : row.keys) EXPECT_EQ(find_key(path)->path, path) << row.name;
}

TEST(ReadKeys, SubjectsReadTheirOwnKeys) {
  CellConfig cell = base("bf16", "linear");
  const auto reads = [&](const char* path) { return !why_unread(*find_key(path), cell, bundled_vocabulary()); };
  EXPECT_TRUE(reads("training.deterministic"));
  EXPECT_FALSE(reads("versions.after"));
  cell.subject = "torch";
  EXPECT_FALSE(reads("training.deterministic"));
  EXPECT_TRUE(reads("versions.after"));
}

}  // namespace
}  // namespace fp8lab
