#include "harness/cli/plan/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

constexpr std::size_t kLargestFile = 1 << 20;
constexpr std::string_view kWatchedSchema = "fp8lab.model/1";
constexpr std::int64_t kLongestSequence = 8192;  ///< tokens; the models allow more, and few train with more
constexpr std::int64_t kMostSize = std::int64_t{1} << 24;
constexpr std::int64_t kMostGroups = 32;  ///< the largest value of key `expert_groups`

/// What a value of `model_type` means: the names of its sizes, and what its layers are.
struct ModelType {
  std::string_view name, form;
  std::string_view layers, hidden, heads, kv_heads, ffn, seq, activation;
  std::string_view activation_is;  ///< what this program's layers compute
  std::int64_t ffn_over_hidden;    ///< `ffn` by default, as a multiple of `hidden`; 0: the file must have it
  bool is_tied;                    ///< by default
  bool has_qkv_bias;               ///< Q, K and V have biases, the other products none
  bool has_qk_norm;
  std::int64_t head_dim;          ///< by default; 0: hidden / heads
  bool uses_window;               ///< by default, if the file has a `sliding_window`
  std::string_view experts = "";  ///< the key of their number in a mixture; "": one MLP for all tokens
  bool is_gpt_oss = false;        ///< has sinks, biases of all products, and clamped SwiGLU
  bool has_latents = false;       ///< latents make Q, K and V
};

constexpr ModelType of_llama(std::string_view name, bool has_qkv_bias = false, bool has_qk_norm = false,
                             std::int64_t head_dim = 0, bool uses_window = false) {
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
          has_qkv_bias,
          has_qk_norm,
          head_dim,
          uses_window};
}

constexpr ModelType of_gemma() {
  ModelType type = of_llama("gemma", false, false, 256);
  type.form = "gemma";
  type.activation = "hidden_activation";  // `hidden_act` is gelu in files that were published before this key existed
  type.activation_is = "gelu_pytorch_tanh";
  type.is_tied = true;
  return type;
}

/// A type whose MLP is a mixture of experts: the names of their number and width.
constexpr ModelType of_experts(ModelType type, std::string_view experts, std::string_view expert_ffn) {
  type.experts = experts;
  type.ffn = expert_ffn;
  return type;
}

constexpr ModelType of_gpt_oss() {
  ModelType type = of_experts(of_llama("gpt_oss", false, false, 64, true), "num_local_experts", "intermediate_size");
  type.is_gpt_oss = true;
  return type;
}

constexpr ModelType of_deepseek() {
  ModelType type = of_experts(of_llama("deepseek_v3"), "n_routed_experts", "moe_intermediate_size");
  type.kv_heads = "";  // every head has keys and values of its own
  type.has_latents = true;
  return type;
}

constexpr std::array kTypes{
    ModelType{"gpt2", "gpt", "n_layer", "n_embd", "n_head", "", "n_inner", "n_positions", "activation_function",
              "gelu_new", 4, true, false, false, 0, false},
    of_llama("llama"),
    of_llama("mistral", false, false, 0, true),
    of_llama("qwen2", true),
    of_llama("qwen3", false, true, 128),
    of_gemma(),
    of_experts(of_llama("mixtral", false, false, 0, true), "num_local_experts", "intermediate_size"),
    of_experts(of_llama("qwen3_moe", false, true), "num_experts", "moe_intermediate_size"),
    of_gpt_oss(),
    of_deepseek(),
};

/// Keys for the number of experts; a model of another type that has more than one has layers that this program lacks.
constexpr std::array<std::string_view, 3> kExperts{"num_local_experts", "num_experts", "n_routed_experts"};

/// Keys that only models with other layers have, unless they are null.
struct Foreign {
  std::string_view key, what;
};
constexpr std::array kForeign{
    Foreign{"attn_logit_softcapping", "has no caps of attention's logits"},
    Foreign{"final_logit_softcapping", "has no caps of the head's logits"},
};
/// The same if the type has no latents.
constexpr std::array kForeignLatents{
    Foreign{"kv_lora_rank", "reads low-rank keys and values (MLA) only of deepseek_v3"},
    Foreign{"q_lora_rank", "reads low-rank queries (MLA) only of deepseek_v3"},
};

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
  if (const std::string_view what = lacking_for(type.text()); !what.empty())
    type.refuse_for(fmt::format("is {}, which has {}; this program's layers lack that", type.text(), what));
  std::vector<std::string> names;
  for (const ModelType& one : kTypes) names.emplace_back(one.name);
  type.refuse(fmt::format("one of {}, whose layers this program has", listed(names)));
}

/// Refuses parts of layers that no type of kTypes has.
void check_parts(const JsonReader& config, const ModelType& type) {
  for (const std::string_view key : kExperts)
    if (const auto experts = config.find(key); experts && key != type.experts && experts->integer(0, kMostSize) > 1)
      experts->refuse_for(fmt::format("is above 1, but layers of {} have one MLP", type.name));
  const auto refuse = [&](std::span<const Foreign> keys) {
    for (const Foreign& foreign : keys)
      if (const auto found = config.find(foreign.key))
        found->refuse_for(fmt::format("is not null, and this program {}", foreign.what));
  };
  refuse(kForeign);
  if (!type.has_latents) refuse(kForeignLatents);
}

/// N if every Nth layer has the window, beginning with the first. Refuses other files.
std::int64_t window_every_of(const JsonReader& config, const ModelType& type, std::int64_t layers) {
  const auto types = config.find("layer_types");
  if (!types) {
    if (const auto first = config.find("max_window_layers"); first && first->integer(0, kMostSize) > 0)
      first->refuse_for(fmt::format("is {}, the layers without a window, and in this program the first layer has one",
                                    first->integer(0, kMostSize)));
    return type.is_gpt_oss ? 2 : 1;
  }
  std::vector<std::int64_t> with_window;
  std::int64_t count = 0;
  types->each_item([&](const JsonReader& layer) {
    if (layer.is_text("sliding_attention")) with_window.push_back(count);
    ++count;
  });
  if (std::ssize(with_window) == count) return 1;
  const std::int64_t every = with_window.size() < 2 ? layers : with_window[1];
  bool fits = count == layers && !with_window.empty() && with_window.front() == 0 &&
              std::ssize(with_window) == (layers + every - 1) / every;
  for (std::size_t i = 0; fits && i < with_window.size(); ++i)
    fits = with_window[i] == static_cast<std::int64_t>(i) * every;
  if (!fits)
    types->refuse_for(fmt::format(
        "has layers with a window and others, and this program has windows only of every Nth of the {} layers, "
        "beginning with the first",
        layers));
  return every;
}

/// The most tokens that a query sees, in every layer that has a window; 0: all.
std::int64_t window_of(const JsonReader& config, const ModelType& type, std::int64_t seq) {
  bool used = flag_or(config, "use_sliding_window", type.uses_window);
  if (const auto layers = config.find("layer_types"))
    layers->each_item([&](const JsonReader& layer) { used = used || layer.is_text("sliding_attention"); });
  const auto window = config.find("sliding_window");
  if (!window && used && config.find("layer_types"))
    config.at("layer_types").refuse_for("has sliding_attention, but the file has no sliding_window");
  if (!window || !used) return 0;
  const std::int64_t tokens = window->integer(1, INT32_MAX);
  return tokens >= seq ? 0 : tokens;
}

/// Refuses mixtures of experts that differ from this program's.
void check_experts(const JsonReader& config, const ModelType& type) {
  if (type.experts.empty() || type.is_gpt_oss || type.name == "mixtral") return;
  const auto norm = config.find("norm_topk_prob");
  if (norm ? !norm->flag() : !type.has_latents)  // true by default in deepseek_v3
    (norm ? *norm : config.at("model_type"))
        .refuse_for(fmt::format("{}, and this program's routers divide the weights of a token by their sum",
                                norm ? "is false" : "is qwen3_moe without norm_topk_prob: true"));
  if (const auto step = config.find("decoder_sparse_step"); step && step->integer(0, kMostSize) != 1)
    step->refuse_for("is not 1: some layers have one MLP, and this program's layers are all alike");
  if (const auto layers = config.find("mlp_only_layers")) {
    std::size_t count = 0;
    layers->each_item([&](const JsonReader&) { ++count; });
    if (count > 0) layers->refuse_for("names layers with one MLP, and this program's layers are all alike");
  }
}

/// Refuses layers that differ from this program's in what they compute or hold.
void check_layers(const JsonReader& config, const ModelType& type) {
  if (const auto activation = config.find(type.activation); activation && !activation->is_text(type.activation_is))
    activation->refuse(fmt::format("{}, the activation of this program's {} layers", type.activation_is, type.form));
  if (const auto bias = config.find("attention_bias"); type.is_gpt_oss && bias && !bias->flag())
    bias->refuse_for("is false: only experts have biases, and this program has biases of all products, or of none");
  else if (bias && bias->flag() && !type.is_gpt_oss)
    bias->refuse_for(
        "is true: Q, K, V and the product behind attention have biases, and the MLP none; this program has "
        "biases of all products, or only of Q, K and V");
  if (const auto bias = config.find("mlp_bias"); bias && bias->flag())
    bias->refuse_for("is true, and this program has no biases of only the MLP");
}

/// Refuses a value of `key` other than `only`, which is the default.
void check_text(const JsonReader& config, std::string_view key, std::string_view only) {
  if (const auto found = config.find(key); found && !found->is_text(only))
    found->refuse(fmt::format("{}, as this program's routers of deepseek_v3 have it", only));
}

/// Reads what only models of type deepseek_v3 have, with the defaults of transformers.
void read_deepseek(const JsonReader& config, KnownModel& sizes) {
  check_text(config, "scoring_func", "sigmoid");
  check_text(config, "topk_method", "noaux_tc");
  if (const auto every = config.find("moe_layer_freq"); every && every->integer(0, kMostSize) != 1)
    every->refuse_for(
        "is not 1: some layers between mixtures have one MLP, and this program has those only at the start");
  if (const auto heads = config.find("num_key_value_heads"); heads && heads->integer(1, kMostSize) != sizes.heads)
    heads->refuse_for("differs from num_attention_heads, but with latents every head has keys and values of its own");
  if (!config.find("q_lora_rank"))
    config.at("model_type")
        .refuse_for(
            "is deepseek_v3 without q_lora_rank, and this program makes queries of latents if keys and values are");
  sizes.head_dim = config_size(config, "qk_nope_head_dim");
  sizes.rope_dim = config_size(config, "qk_rope_head_dim");
  sizes.value_dim = config_size(config, "v_head_dim");
  sizes.q_rank = config_size(config, "q_lora_rank");
  sizes.kv_rank = config_size(config, "kv_lora_rank");
  sizes.shared_experts = config.at("n_shared_experts").integer(0, kMostSize);
  sizes.dense_layers = config.at("first_k_dense_replace").integer(0, kMostSize);
  sizes.dense_ffn = config_size(config, "intermediate_size");
  sizes.sigmoid_scale = config.at("routed_scaling_factor").number();
  sizes.has_router_biases = true;
  const std::int64_t groups = config.at("n_group").integer(1, kMostGroups),
                     chosen = config.at("topk_group").integer(1, groups);
  if (chosen == groups) return;  // no group is left out
  sizes.expert_groups = groups;
  sizes.top_groups = chosen;
}

/// Parts of a model that its plan leaves out, in words; "": none.
std::string left_out_of(const JsonReader& config) {
  std::vector<std::string> parts;
  if (const auto modules = config.find("num_nextn_predict_layers"); modules && modules->integer(0, kMostSize) > 0)
    parts.emplace_back("modules that predict further tokens (`num_nextn_predict_layers`)");
  if (const auto loss = config.find("aux_loss_alpha"); loss && loss->number() != 0.0)
    parts.emplace_back("the auxiliary loss of routers (`aux_loss_alpha`)");
  const auto is_used = config.find("output_router_logits");
  const auto coefficient = config.find("router_aux_loss_coef");
  if (is_used && is_used->flag() && coefficient && coefficient->number() != 0.0)
    parts.emplace_back(
        "the auxiliary loss of routers (`router_aux_loss_coef`), unless `--set router_aux_loss=N` adds it to the "
        "built-in runtime");
  std::vector<std::string> dropouts;
  for (const char* key : {"attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"})
    if (const auto dropout = config.find(key); dropout && dropout->number() != 0.0)
      dropouts.push_back(fmt::format("`{}`", key));
  if (!dropouts.empty())
    parts.push_back(fmt::format("dropout ({}), unless `--set dropout=N` adds it to the built-in runtime",
                                fmt::join(dropouts, ", ")));
  return fmt::format("{}", fmt::join(parts, ", and "));
}

FileModel model_of(const JsonReader& config, const std::string& name) {
  const ModelType& type = model_type_of(config);
  check_parts(config, type);
  check_experts(config, type);
  const std::int64_t seq = std::min(config_size(config, type.seq), kLongestSequence);
  check_layers(config, type);
  KnownModel sizes{.name = name,
                   .layers = config_size(config, type.layers),
                   .hidden = config_size(config, type.hidden),
                   .heads = config_size(config, type.heads),
                   .kv_heads = config_size_or(config, type.kv_heads, config_size(config, type.heads)),
                   .ffn = 0,
                   .vocabulary = config_size(config, "vocab_size"),
                   .seq = seq,
                   .form = type.form,
                   .is_tied = flag_or(config, "tie_word_embeddings", type.is_tied),
                   .head_dim = config_size_or(config, "head_dim", type.head_dim),
                   .has_qkv_bias = type.has_qkv_bias,
                   .has_qk_norm = type.has_qk_norm};
  if (type.is_gpt_oss) {
    const auto limit = config.find("swiglu_limit");
    sizes.has_all_biases = sizes.has_sinks = true;
    sizes.swiglu_limit = limit ? limit->number() : 7.0;
    if (!(sizes.swiglu_limit > 0.0)) limit->refuse("a number above 0");
  }
  if (!type.experts.empty()) {
    sizes.experts = config_size(config, type.experts);
    sizes.top_k = config_size(config, "num_experts_per_tok");
  }
  sizes.ffn = type.ffn_over_hidden == 0 ? config_size(config, type.ffn)
                                        : config_size_or(config, type.ffn, sizes.hidden * type.ffn_over_hidden);
  if (sizes.head_dim == 0 && sizes.hidden % sizes.heads != 0)
    config.at(type.heads).refuse_for(fmt::format("does not divide {}, and the file has no head_dim", type.hidden));
  if (type.has_latents) read_deepseek(config, sizes);
  CellConfig cell = sizes.cell();
  cell.model.window = window_of(config, type, seq);
  if (cell.model.window > 0) cell.model.window_every = window_every_of(config, type, sizes.layers);
  return {.cell = std::move(cell), .left_out = left_out_of(config)};
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

FileModel read_model_file(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestFile);
  try {
    const JsonDocument document(text);
    const JsonReader root = document.root();
    if (root.text_or_empty("schema") != kWatchedSchema) return model_of(root, model_name_of(path));
    if (const std::string unknown = root.text_or_empty("unknown"); !unknown.empty()) fail(unknown);
    return model_of(root.at("config"), root.at("model").text());
  } catch (const Error& error) {
    fail(fmt::format("{}: {}; --model reads the config.json of a Hugging Face model", path, error.what()));
  }
}

WatchedModel read_watched_model(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestFile);
  try {
    const JsonDocument document(text);
    const JsonReader root = document.root();
    if (const JsonReader schema = root.at("schema"); !schema.is_text(kWatchedSchema))
      schema.refuse(fmt::format("\"{}\"", kWatchedSchema));
    WatchedModel out;
    out.name = root.at("model").text();
    out.unknown = root.text_or_empty("unknown");
    root.at("keys").each_member([&](const std::string& key, const JsonReader& value) {
      out.settings.push_back(fmt::format("{}={}", key, value.text_of_scalar()));
    });
    root.at("differs").each_item([&](const JsonReader& one) { out.differs.push_back(one.text()); });
    return out;
  } catch (const Error& error) {
    fail(fmt::format("{}: {}; watch the program again", path, error.what()));
  }
}

}  // namespace fp8lab
