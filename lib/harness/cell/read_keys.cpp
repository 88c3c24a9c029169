#include "harness/cell/read_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

using Keys = std::span<const std::string_view>;

constexpr std::array<std::string_view, 16> kAdamKeys{
    "training.learning_rate", "training.learning_rate_schedule", "training.warmup_steps",
    "training.final_learning_rate", "training.decay_steps", "training.weight_decay", "training.decay_only_matrices",
    "training.weight_average",
    // Keys of both forms of Adam: SGD has no moments, its decay is the same in both forms, and it clips nothing.
    "training.beta1", "training.beta2", "training.decoupled_decay", "training.clip_norm",
    // Keys of the fused one only: foreach_adam updates the parameters themselves, with moments in f32, and rounds to
    // the nearest.
    "training.master_weights", "training.moments", "training.weight_rounding", "training.masters_from"};

bool lists(Keys keys, std::string_view path) { return std::ranges::find(keys, path) != keys.end(); }

/// A row of a table whose rows list the keys that they read and other rows do not.
struct Reader {
  std::string_view name;
  Keys keys;
};

constexpr std::array kOptimizers{Reader{"none", {}}, Reader{"adam", kAdamKeys},
                                 Reader{"foreach_adam", Keys(kAdamKeys).first(12)},
                                 Reader{"sgd", Keys(kAdamKeys).first(8)}};

template <class Rows>
std::vector<Reader> readers(const Rows& rows) {
  std::vector<Reader> out;
  for (const auto& row : rows) out.push_back({row.name, row.keys});
  return out;
}

/// A table of readers, and the key that chooses one of its rows.
struct Table {
  std::string_view kind;
  std::string_view path;
  std::vector<Reader> (*rows)(const Vocabulary&);
  std::string (*chosen)(const CellConfig&);
};

constexpr std::array kTables{
    Table{"subject", "subject", [](const Vocabulary&) { return readers(kSubjects); },
          [](const CellConfig& cell) { return cell.subject; }},
    Table{"layer", "model.layer", [](const Vocabulary& vocabulary) { return readers(vocabulary.layers); },
          [](const CellConfig& cell) { return cell.model.layer; }},
    Table{"recipe", "training.recipe", [](const Vocabulary& vocabulary) { return readers(vocabulary.recipes); },
          [](const CellConfig& cell) { return cell.training.recipe; }},
    Table{"optimizer", "training.optimizer", [](const Vocabulary&) { return readers(kOptimizers); },
          [](const CellConfig& cell) { return std::string(cell.training.optimizer.text()); }},
};

/// Keys that embedding, last norm and head of a language model read, whatever its layers are.
constexpr std::array<std::string_view, 3> kLanguageKeys{"model.form", "model.bias", "model.dropout"};

bool decays(const CellConfig& cell) { return cell.training.weight_decay != 0.0; }
bool is_cosine(const CellConfig& cell) { return cell.training.learning_rate_schedule == RateSchedule::kCosine; }
bool casts_attention(const CellConfig& cell) { return cell.training.fp8_attention; }
/// Masters that the cell names differ from its parameters. `remainder` is left to the rules, which refuse it.
bool keeps_masters(const CellConfig& cell) {
  const TrainingConfig& training = cell.training;
  return is_library(cell) || training.master_weights != Master::kF32 || training.param_dtype == ParamDType::kBF16 ||
         training.quantized_weights;
}
bool has_latents_of(const CellConfig& cell) { return has_latents(cell.model); }
bool routes(const CellConfig& cell) { return routes_tokens(cell.model); }
bool has_sigmoids(const CellConfig& cell) { return routes(cell) && cell.model.router == RouterScore::kSigmoid; }
bool reads_text(const CellConfig& cell) { return cell.training.data == Data::kText; }

/// A key that has an effect only if another key has a certain value.
struct Condition {
  std::string_view path;
  std::string_view decides;
  bool (*reads)(const CellConfig&);
  std::string_view reason;
  std::string_view remedy;  ///< what makes the cell read the key
};

/// A cast that follows a norm or an activation reads what a training pass stores anyway, if its blocks have scales of
/// their own in both orientations.
bool fuses_casts(const CellConfig& cell) {
  const bool by_blocks = cell.training.recipe == "block" || cell.training.recipe == "mxfp8";
  return !by_blocks || cell.training.validation_batches > 0;
}

constexpr std::string_view kNothingGathered = "nothing is gathered without sharding";
constexpr std::string_view kShard = "write `sharding: fsdp`, or several `ranks` without `sharding`";
constexpr std::string_view kAttentionInEight = "write `fp8_attention: true`";
constexpr std::string_view kOneMlp = "one MLP has all tokens";
constexpr std::string_view kExpertsRemedy = "write `top_k`";
constexpr std::string_view kNoScores = "the router chooses by logits, not by sigmoids";
constexpr std::string_view kScoresRemedy = "write `router: sigmoid`";
constexpr std::string_view kNoLatents = "one product makes Q, K and V";
constexpr std::string_view kLatentsRemedy = "write `kv_rank`";
constexpr std::string_view kVocabularyRemedy = "write `vocabulary`";

constexpr std::array kConditions{
    Condition{"mesh", "sharding", is_sharded, "only `sharding: fsdp` has a mesh", "remove `sharding`"},
    Condition{"reshard_after_forward", "sharding", is_sharded, kNothingGathered, kShard},
    Condition{"gather_ahead", "sharding", is_sharded, kNothingGathered, kShard},
    Condition{"reduce_dtype", "sharding", is_sharded, "only FSDP2 reduces gradients in another type than their own",
              kShard},
    Condition{"training.deferred_init", "sharding", is_sharded, "without sharding no rank initialises parameters later",
              kShard},
    Condition{"model.head", "model.vocabulary", is_language_model, "a model without a vocabulary has no head",
              kVocabularyRemedy},
    Condition{"model.positions", "model.vocabulary", is_language_model,
              "a model without a vocabulary has no embedding to add them to", kVocabularyRemedy},
    Condition{"model.window_every", "model.window", [](const CellConfig& cell) { return cell.model.window > 0; },
              "no layer has a window", "write `window`"},
    Condition{"model.window_every", "model.layers", [](const CellConfig& cell) { return cell.model.layers > 1; },
              "the only layer has the window", "write `layers: 2` or more"},
    Condition{"model.swiglu_limit", "model.form", [](const CellConfig& cell) { return cell.model.form == "llama"; },
              "only form llama has SwiGLU", "write `form: llama`"},
    Condition{"model.q_rank", "model.kv_rank", has_latents_of, kNoLatents, kLatentsRemedy},
    Condition{"model.rope_dim", "model.kv_rank", has_latents_of, kNoLatents, kLatentsRemedy},
    Condition{"model.value_dim", "model.kv_rank", has_latents_of, kNoLatents, kLatentsRemedy},
    Condition{"model.kv_heads", "model.kv_rank", [](const CellConfig& cell) { return !has_latents_of(cell); },
              "with latents every head has keys and values of its own", "remove `kv_rank`"},
    Condition{"model.split", "model.experts", [](const CellConfig& cell) { return cell.model.experts > 1; },
              "one expert has all tokens", "write `experts: 2` or more"},
    Condition{"model.experts", "model.top_k",
              [](const CellConfig& cell) { return routes(cell) || cell.model.layer == "grouped_linear"; }, kOneMlp,
              kExpertsRemedy},
    Condition{"expert_parallel", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.expert_ffn", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.shared_experts", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.dense_layers", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.router", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.router_scale", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.router", "model.top_k",
              [](const CellConfig& cell) { return cell.model.top_k > 1 || cell.model.router_aux_loss > 0.0; },
              "the weight of a token's only expert is `router_scale` whatever the score is",
              "write `top_k: 2` or more"},
    Condition{"model.expert_groups", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.expert_groups", "model.router", has_sigmoids, kNoScores, kScoresRemedy},
    Condition{"model.top_groups", "model.expert_groups",
              [](const CellConfig& cell) { return has_expert_groups(cell.model); }, "every expert can be chosen",
              "write `expert_groups`"},
    Condition{"model.router_bias_rate", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.router_bias_rate", "model.router", has_sigmoids, kNoScores, kScoresRemedy},
    Condition{"model.router_aux_loss", "model.top_k", routes, kOneMlp, kExpertsRemedy},
    Condition{"model.router_aux_loss", "model.top_k",
              [](const CellConfig& cell) { return !routes(cell) || cell.model.top_k < cell.model.experts; },
              "every expert has all tokens", "write a `top_k` below `experts`"},
    Condition{"model.ffn", "model.expert_ffn",
              [](const CellConfig& cell) {
                return !routes(cell) || cell.model.expert_ffn == 0 || cell.model.dense_layers > 0;
              },
              "each expert has the width `expert_ffn`, and there is no other MLP", "remove `expert_ffn`"},
    Condition{"model.op_fuser", "model.top_k", [](const CellConfig& cell) { return !routes(cell); },
              "a mixture of experts is no chain of operations", "remove `top_k`"},
    Condition{"training.loss_chunks", "model.vocabulary", is_language_model, "without a vocabulary there are no logits",
              kVocabularyRemedy},
    Condition{"training.loss_chunks", "subject", [](const CellConfig& cell) { return is_library(cell); },
              "this program's runtime computes all logits at once",
              "write `subject: torch`, or plan it by `--as torch@2.15`"},
    Condition{"training.validate_every", "training.validation_batches",
              [](const CellConfig& cell) { return cell.training.validation_batches > 0; },
              "a validation has no batches", "write `validation_batches: 1`"},
    Condition{"training.final_learning_rate", "training.learning_rate_schedule", is_cosine,
              "a constant learning rate has no end", "write `learning_rate_schedule: cosine`"},
    Condition{"training.decay_steps", "training.learning_rate_schedule", is_cosine,
              "a constant learning rate has no end", "write `learning_rate_schedule: cosine`"},
    Condition{"training.decoupled_decay", "training.weight_decay", decays, "weights do not decay",
              "write `weight_decay`"},
    Condition{"training.decay_only_matrices", "training.weight_decay", decays, "weights do not decay",
              "write `weight_decay`"},
    Condition{"training.clip_norm", "training.optimizer",
              [](const CellConfig& cell) { return is_library(cell) || cell.training.optimizer == Optimizer::kAdam; },
              "foreach_adam clips no gradients in this program's runtime", "write `optimizer: adam`"},
    Condition{"training.weight_rounding", "training.master_weights",
              [](const CellConfig& cell) { return cell.training.master_weights == Master::kNone; },
              "masters keep what rounding loses", "write `master_weights: none`"},
    Condition{"training.weight_rounding", "training.param_dtype",
              [](const CellConfig& cell) { return cell.training.param_dtype == ParamDType::kBF16; },
              "parameters in f32 are not rounded to 16 bits", "write `param_dtype: bf16`"},
    Condition{"training.master_weights", "training.param_dtype", keeps_masters,
              "parameters in f32 are their own masters", "write `param_dtype: bf16`"},
    Condition{"training.masters_from", "training.quantized_weights",
              [](const CellConfig& cell) { return cell.training.quantized_weights; },
              "only masters of FP8 weights can start from something other than the weights",
              "write `quantized_weights: true`"},
    Condition{"training.corpus", "training.data", reads_text, "no other data than text comes from a corpus",
              "write `data: text`"},
    Condition{"training.tokens", "training.data", reads_text, "no other data than text comes from a corpus",
              "write `data: text`"},
    Condition{"training.fp8_attention_backward", "training.fp8_attention", casts_attention,
              "attention casts nothing in forward either", kAttentionInEight},
    Condition{
        "training.fp8_mha", "training.fp8_attention",
        [](const CellConfig& cell) { return cell.training.fp8_attention && cell.training.fp8_attention_backward; },
        "attention must read and return eight bits in both passes",
        "write `fp8_attention: true` and no `fp8_attention_backward: false`"},
    Condition{"model.init_std", "model.layer",
              [](const CellConfig& cell) { return !is_norm(cell.model) || is_language_model(cell); },
              "the layer is a norm, which has no matrix", "write `layer: layernorm_linear`, or `vocabulary`"},
    Condition{"training.recipe", "model.layer", [](const CellConfig& cell) { return !is_norm(cell.model); },
              "the layer is a norm, and has no product that reads eight bits", "write `layer: layernorm_linear`"},
    Condition{"training.fp8_dispatch", "expert_parallel",
              [](const CellConfig& cell) { return cell.expert_parallel > 1; },
              "each rank has all experts of its tokens", "write `expert_parallel: 2`"},
    Condition{"training.fp8_dispatch", "training.recipe",
              [](const CellConfig& cell) { return cell.training.recipe != "current"; },
              "under `current` each sender has a scale of its own, and a product reads one",
              "write `recipe: delayed`, `block` or `mxfp8`"},
    Condition{"training.fused_quantize", "training.validation_batches", fuses_casts,
              "only validation fuses the casts of blocks", "write `validation_batches: 1`"},
    Condition{"training.cache_weights", "sharding", [](const CellConfig& cell) { return !is_sharded(cell); },
              "layers of a sharded model cache no weights", "write `sharding: none`"},
    Condition{"training.cache_weights", "training.quantized_weights",
              [](const CellConfig& cell) { return !cell.training.quantized_weights; },
              "weights that live in FP8 have no copy", "remove `quantized_weights`"},
    Condition{"training.fp8_sums", "arch", [](const CellConfig& cell) { return cell.arch == "hopper"; },
              "only Hopper's tensor cores sum FP8 products with 13 fraction bits", "write `arch: hopper`"},
};

std::string_view last_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

std::string names_of_keys(Keys keys) {
  std::string out;
  for (const std::string_view path : keys) out += fmt::format("{}{}", out.empty() ? "" : ", ", last_of(path));
  return out.empty() ? "none" : out;
}

/// Names of the rows that read the key; empty if no row of the table lists it, so that every row reads it.
std::vector<std::string_view> rows_with(const std::vector<Reader>& rows, std::string_view path) {
  std::vector<std::string_view> out;
  for (const Reader& row : rows)
    if (lists(row.keys, path)) out.push_back(row.name);
  return out;
}

/// "a", "a and b", "a, b and c"
std::string all_of(const std::vector<std::string_view>& names) {
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::optional<Unread> unread_by(const Table& table, const Key& key, const CellConfig& cell,
                                const Vocabulary& vocabulary) {
  const std::vector<Reader> rows = table.rows(vocabulary);
  const std::string chosen = table.chosen(cell);
  const auto own = std::ranges::find(rows, chosen, &Reader::name);
  if (own == rows.end() || lists(own->keys, key.path)) return std::nullopt;
  // The form of a layer without norm and activation decides the biases, if the cell leaves them out.
  if (key.path == "model.form" && !cell.model.bias && lists(own->keys, "model.bias")) return std::nullopt;
  const std::vector<std::string_view> others = rows_with(rows, key.path);
  if (others.empty()) return std::nullopt;
  return Unread{table.path,
                fmt::format("{} {} does not read it, {} {}", table.kind, chosen, all_of(others),
                            others.size() == 1 ? "does" : "do"),
                fmt::format("write `{}: {}` (keys that {} reads and not every {}: {})", last_of(table.path),
                            others.front(), chosen, table.kind, names_of_keys(own->keys))};
}

/// Keys that a training program of the user's reads without an argument that names them.
constexpr std::array<std::string_view, 4> kKeysOfScripts{"device", "subject", "ranks", "control"};

/// A program of the user's builds its own model, so a key has an effect only if the program gets its value.
std::optional<Unread> unread_by_script(const Key& key, const CellConfig& cell) {
  if (key.path == "variant" && !names_key(cell, "variant"))
    return Unread{"subject", "no argument of the script has its value",
                  "give the script its value (`arguments: [\"--mode={variant}\"]`)"};
  if (lists(kKeysOfScripts, key.path) || lists(kScriptKeys, key.path) || names_key(cell, key.last()))
    return std::nullopt;
  return Unread{"subject", "the script builds its own model and training",
                fmt::format("give the script its value (`arguments: [\"--{0}={{{0}}}\"]`)", key.last())};
}

}  // namespace

std::optional<Unread> why_unread(const Key& key, const CellConfig& cell, const Vocabulary& vocabulary) {
  if (is_script(cell)) return unread_by_script(key, cell);
  const bool of_language = is_language_model(cell) && lists(kLanguageKeys, key.path);
  for (const Table& table : kTables) {
    if (of_language && table.kind == "layer") continue;
    if (std::optional<Unread> unread = unread_by(table, key, cell, vocabulary)) return unread;
  }
  for (const Condition& row : kConditions)
    if (row.path == key.path && !row.reads(cell))
      return Unread{row.decides, std::string(row.reason), std::string(row.remedy)};
  return std::nullopt;
}

std::vector<std::optional<Unread>> drop_unread(const std::vector<const Key*>& given, CellConfig& cell,
                                               const Vocabulary& vocabulary) {
  static const CellConfig kDefaults;
  std::vector<std::optional<Unread>> out(given.size());
  // A key that is dropped may have been what another key needs.
  for (bool dropped = true; dropped;) {
    dropped = false;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!given[i] || out[i] || !(out[i] = why_unread(*given[i], cell, vocabulary))) continue;
      given[i]->copy(cell, kDefaults);
      dropped = true;
    }
  }
  return out;
}

std::string read_by(const Key& key, const Vocabulary& vocabulary) {
  std::vector<std::string> parts;
  for (const Table& table : kTables) {
    const std::vector<std::string_view> rows = rows_with(table.rows(vocabulary), key.path);
    if (!rows.empty()) parts.push_back(fmt::format("{}{} {}", table.kind, rows.size() == 1 ? "" : "s", all_of(rows)));
  }
  if (lists(kLanguageKeys, key.path)) parts.emplace_back("and any layer of a language model");
  for (const Condition& row : kConditions)
    if (row.path == key.path) parts.push_back(fmt::format("not if {}", row.reason));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace fp8lab
