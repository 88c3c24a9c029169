#include "harness/cli/plan/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

constexpr std::size_t kLargestFile = 1 << 20;
constexpr std::int64_t kLongestSequence = 8192;  ///< tokens; the models allow more, and few train with more
constexpr std::int64_t kMostSize = std::int64_t{1} << 24;

/// What a value of `model_type` means: the names of its sizes, and what its layers are.
struct ModelType {
  std::string_view name, form;
  std::string_view layers, hidden, heads, kv_heads, ffn, seq, activation;
  std::string_view activation_is;  ///< what this program's layers compute
  std::int64_t ffn_over_hidden;    ///< `ffn` by default, as a multiple of `hidden`; 0: the file must have it
  bool is_tied;                    ///< by default
  bool has_qkv_bias;               ///< Q, K and V have biases, the other products none
};

constexpr ModelType of_llama(std::string_view name, bool has_qkv_bias = false) {
  return {name,
          "llama",
          "num_hidden_layers",
          "hidden_size",
          "num_attention_heads",
          "num_key_value_heads",
          "intermediate_size",
          "max_position_embeddings",
          "hidden_act",
          "silu",
          0,
          false,
          has_qkv_bias};
}

constexpr std::array kTypes{
    ModelType{"gpt2", "gpt", "n_layer", "n_embd", "n_head", "", "n_inner", "n_positions", "activation_function",
              "gelu_new", 4, true, false},
    of_llama("llama"),
    of_llama("mistral"),
    of_llama("qwen2", true),
};

/// Keys for the number of experts; a model with more than one has layers that this program does not have.
constexpr std::array<std::string_view, 3> kExperts{"num_local_experts", "num_experts", "n_routed_experts"};

std::int64_t config_size(const JsonReader& config, std::string_view key) {
  return config.at(key).integer(1, kMostSize);
}

std::int64_t config_size_or(const JsonReader& config, std::string_view key, std::int64_t absent) {
  const auto found = key.empty() ? std::nullopt : config.find(key);
  return found ? found->integer(1, kMostSize) : absent;
}

bool flag_or(const JsonReader& config, std::string_view key, bool absent) {
  const auto found = config.find(key);
  return found ? found->flag() : absent;
}

const ModelType& model_type_of(const JsonReader& config) {
  const JsonReader type = config.at("model_type");
  const auto row = std::ranges::find(kTypes, type.text(), &ModelType::name);
  if (row != kTypes.end()) return *row;
  std::vector<std::string> names;
  for (const ModelType& one : kTypes) names.emplace_back(one.name);
  type.refuse(fmt::format("one of {}, whose layers this program has", listed(names)));
}

/// Refuses layers that differ from this program's in what they compute or hold.
void check_layers(const JsonReader& config, const ModelType& type) {
  for (const std::string_view key : kExperts)
    if (const auto experts = config.find(key); experts && experts->integer(0, kMostSize) > 1)
      experts->refuse_for("is above 1, and this program has no mixture of experts");
  if (const auto activation = config.find(type.activation); activation && !activation->is_text(type.activation_is))
    activation->refuse(fmt::format("{}, the activation of this program's {} layers", type.activation_is, type.form));
  const std::int64_t hidden = config_size(config, type.hidden), heads = config_size(config, type.heads);
  if (const auto dim = config.find("head_dim"); dim && dim->integer(1, kMostSize) * heads != hidden)
    dim->refuse_for(fmt::format("is not {} / {}, as the heads of this program's layers are", type.hidden, type.heads));
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (const auto bias = config.find(key); bias && bias->flag())
      bias->refuse_for("is true, and this program's llama layers have no biases");
}

/// What the figures leave out.
std::vector<std::string> notes_of(const JsonReader& config, const ModelType& type, const CellConfig& cell) {
  std::vector<std::string> out;
  const ModelConfig& model = cell.model;
  if (type.has_qkv_bias) {
    const std::int64_t biases = model.layers * (model.heads + 2 * model.kv_heads) * (model.hidden / model.heads);
    out.push_back(fmt::format("left out: the biases of Q, K and V, {} parameters", biases));
  }
  if (const auto window = config.find("sliding_window"); window && flag_or(config, "use_sliding_window", true))
    out.push_back(fmt::format("attention reads all tokens, not a window of {}", window->integer(1, INT32_MAX)));
  return out;
}

PlannedModel model_of(const JsonReader& config, const std::string& name) {
  const ModelType& type = model_type_of(config);
  check_layers(config, type);
  KnownModel sizes{.name = name,
                   .layers = config_size(config, type.layers),
                   .hidden = config_size(config, type.hidden),
                   .heads = config_size(config, type.heads),
                   .kv_heads = config_size_or(config, type.kv_heads, config_size(config, type.heads)),
                   .ffn = 0,
                   .vocabulary = config_size(config, "vocab_size"),
                   .seq = std::min(config_size(config, type.seq), kLongestSequence),
                   .form = type.form,
                   .is_tied = flag_or(config, "tie_word_embeddings", type.is_tied)};
  sizes.ffn = type.ffn_over_hidden == 0 ? config_size(config, type.ffn)
                                        : config_size_or(config, type.ffn, sizes.hidden * type.ffn_over_hidden);
  PlannedModel out{.cell = sizes.cell(), .notes = {}};
  out.notes = notes_of(config, type, out.cell);
  return out;
}

/// "Llama-3-8B" of "models/Llama-3-8B/config.json": the file's own name if it is not config.json.
std::string model_name_of(const std::filesystem::path& file) {
  const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
  return file.filename() == "config.json" && !folder.empty() ? folder : file.stem().string();
}

}  // namespace

bool is_model_file(const std::string& model) {
  return model.ends_with(".json") || model.find('/') != std::string::npos;
}

PlannedModel read_model_file(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestFile);
  try {
    const JsonDocument document(text);
    return model_of(document.root(), model_name_of(path));
  } catch (const Error& error) {
    fail(fmt::format("{}: {}; --model reads the config.json of a Hugging Face model", path, error.what()));
  }
}

}  // namespace fp8lab
