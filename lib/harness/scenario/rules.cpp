#include "harness/scenario/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

using Broken = std::optional<BrokenRule>;
using Rules = std::vector<BrokenRule>;

/// Elements above which byte counts might not fit in 64 bits: a step uses at most a few hundred bytes for each.
constexpr double kMostElements = 0x1p52;

Broken broken_size_rule(const ModelConfig& m, std::int64_t micro_batches) {
  const auto layers = static_cast<double>(m.layers), hidden = static_cast<double>(m.hidden);
  const bool routes = routes_tokens(m);
  const double experts = routes ? static_cast<double>(m.experts + m.shared_experts) : 1.0;
  // A token has a row for each of its experts, and each expert rows of padding.
  const double ffn = static_cast<double>(routes ? std::max(mlp_width(m), m.dense_layers > 0 ? dense_width(m) : 0)
                                                : mlp_width(m)),
               ffn_of_token = ffn * (routes ? 128.0 * experts : 1.0);
  const double attended = static_cast<double>(m.heads) * static_cast<double>(std::max(key_dim_of(m), value_dim_of(m)));
  const double widest = std::max({hidden, ffn_of_token, attended}),
               ranks = static_cast<double>(m.q_rank) + static_cast<double>(m.kv_rank),
               weights = (hidden + ranks) * (4.0 * std::max(hidden, attended) + 3.0 * ffn * experts);
  if (layers * static_cast<double>(m.seq) * static_cast<double>(m.batch) * widest > kMostElements)
    return BrokenRule{"model.batch",
                      fmt::format("activations of {} layers x seq {} x batch {} x {} elements are above 2^52", m.layers,
                                  m.seq, m.batch, widest)};
  if (layers * weights > kMostElements)
    return BrokenRule{"model.layers",
                      fmt::format("weights of {} layers of hidden {} and ffn {} are above 2^52 elements", m.layers,
                                  m.hidden, ffn * experts)};
  const double passed = layers * (static_cast<double>(m.seq) * static_cast<double>(m.batch) * widest + weights);
  if (micro_batches > 1 && static_cast<double>(micro_batches) * passed > kMostElements)
    return BrokenRule{"training.micro_batches",
                      fmt::format("activations and weights of {} passes are above 2^52 elements", micro_batches)};
  return std::nullopt;
}

/// Rules of the model that do not depend on each other. Its number of elements is checked if both sizes are given.
void add_model_rules(const ModelConfig& m, std::int64_t micro_batches, Rules& out) {
  if (m.hidden == 0) out.push_back({"model.hidden", "missing; a model needs its width"});
  if (m.seq == 0) out.push_back({"model.seq", "missing; a model needs its tokens per sequence"});
  if (m.head_dim == 0 && m.hidden % m.heads != 0)
    out.push_back({"model.heads", fmt::format("hidden {} is not a multiple of heads {}; write a divisor, or `head_dim`",
                                              m.hidden, m.heads)});
  if (m.kv_heads != 0 && m.heads % m.kv_heads != 0)
    out.push_back({"model.kv_heads", fmt::format("heads {} is not a multiple of kv_heads {}", m.heads, m.kv_heads)});
  if (m.hidden == 0 || m.seq == 0) return;
  if (Broken broken = broken_size_rule(m, micro_batches)) out.push_back(std::move(*broken));
}

/// What latents need, and what they do not support.
Broken broken_latents_rule(const CellConfig& cell) {
  const ModelConfig& m = cell.model;
  if (m.q_rank == 0 || m.rope_dim == 0)
    return BrokenRule{m.q_rank == 0 ? "model.q_rank" : "model.rope_dim",
                      "missing; attention with `kv_rank` needs it too"};
  if (m.rope_dim % 2 != 0)
    return BrokenRule{"model.rope_dim", fmt::format("{} is odd, but rotary embedding needs pairs of columns; write {}",
                                                    m.rope_dim, m.rope_dim + 1)};
  const auto refused = [](std::string_view key, std::string_view why) {
    return BrokenRule{std::string(key), fmt::format("{}; remove it, or `kv_rank`", why)};
  };
  if (m.form != "llama")
    return BrokenRule{"model.form", "latents need RMSNorm and rotary embedding; write `form: llama`"};
  if (m.bias && *m.bias != Bias::kNone) return refused("model.bias", "products around latents have no biases");
  if (m.qk_norm) return refused("model.qk_norm", "latents are normed, and heads are not");
  if (cell.context_parallel > 1)
    return refused("context_parallel", "ranks that split sequences exchange keys and values of one width");
  if (cell.training.fp8_attention)
    return refused("training.fp8_attention", "FP8 attention casts keys and values of one width");
  return std::nullopt;
}

/// What attention sinks do not support.
Broken broken_sinks_rule(const CellConfig& cell) {
  if (!cell.model.attention_sinks) return std::nullopt;
  if (cell.training.fp8_attention)
    return BrokenRule{"training.fp8_attention", "FP8 attention has no sinks; remove it, or `attention_sinks`"};
  if (cell.context_parallel > 1)
    return BrokenRule{"context_parallel",
                      "ranks that split sequences merge attention without sinks; remove it, or `attention_sinks`"};
  return std::nullopt;
}

/// Rules of layers with attention, and of keys that mean nothing without it.
Broken broken_attention_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  const ModelConfig& m = cell.model;
  const bool attends = vocabulary.attends && vocabulary.attends(m.layer);
  if (!attends && m.bias == Bias::kQkv)
    return BrokenRule{"model.bias",
                      fmt::format("qkv, but {} makes no Q, K and V; write true or false, or another `layer`", m.layer)};
  if (m.window >= m.seq && m.seq > 0)
    return BrokenRule{"model.window", fmt::format("{} is not below the {} tokens of a sequence, so it limits nothing; "
                                                  "write less, or leave it out",
                                                  m.window, m.seq)};
  if (Broken broken = broken_sinks_rule(cell)) return broken;
  if (has_latents(m)) return broken_latents_rule(cell);
  if (m.form != "gpt" && m.head_dim % 2 != 0)
    return BrokenRule{"model.head_dim", fmt::format("{} is odd, but rotary embedding needs pairs of columns; write {}",
                                                    m.head_dim, m.head_dim + 1)};
  return std::nullopt;
}

/// What groups of experts need.
Broken broken_groups_rule(const ModelConfig& model) {
  if (!has_expert_groups(model)) return std::nullopt;
  if (model.top_groups == 0) return BrokenRule{"model.top_groups", "missing; a router with `expert_groups` needs it"};
  if (model.experts % model.expert_groups != 0 || model.experts < 2 * model.expert_groups)
    return BrokenRule{"model.expert_groups",
                      fmt::format("{}, but there are {} experts, and groups have the same number, two or more; write "
                                  "another number, or leave it out",
                                  model.expert_groups, model.experts)};
  if (model.top_groups >= model.expert_groups)
    return BrokenRule{"model.top_groups",
                      fmt::format("{}, but there are {} groups, so that none is left out; write {} or less, or leave "
                                  "`expert_groups` out",
                                  model.top_groups, model.expert_groups, model.expert_groups - 1)};
  const std::int64_t size = model.experts / model.expert_groups;
  if (model.top_groups * size < model.top_k)
    return BrokenRule{"model.top_groups",
                      fmt::format("{} groups of {} experts have less than the {} of a token; write {} or more, or less "
                                  "`top_k`",
                                  model.top_groups, size, model.top_k, (model.top_k + size - 1) / size)};
  return std::nullopt;
}

/// What a mixture of experts does not support.
Broken broken_experts_rule(const CellConfig& cell) {
  const ModelConfig& model = cell.model;
  if (!routes_tokens(model)) return std::nullopt;
  if (model.top_k > model.experts)
    return BrokenRule{"model.top_k", fmt::format("{}, but there are {} experts; write {} or less", model.top_k,
                                                 model.experts, model.experts)};
  if (model.form != "llama")
    return BrokenRule{"model.form", fmt::format("{}, but experts have SwiGLU; write `form: llama`, or remove "
                                                "`top_k`",
                                                model.form)};
  if (model.dense_layers >= model.layers)
    return BrokenRule{"model.dense_layers",
                      fmt::format("{}, but the model has {} layers, so none of them would have a mixture; write {} or "
                                  "less",
                                  model.dense_layers, model.layers, model.layers - 1)};
  return broken_groups_rule(model);
}

Broken broken_language_rule(const CellConfig& cell) {
  const ModelConfig& m = cell.model;
  const Loss loss = cell.training.loss;
  if (is_language_model(cell)) {
    if (loss != Loss::kCrossEntropy)
      return BrokenRule{"training.loss",
                        fmt::format("{}, but a model with a vocabulary trains on the next token; write "
                                    "`loss: cross_entropy`, or remove `vocabulary`",
                                    cell.training.loss.text())};
    if (cell.training.data == Data::kStress)
      return BrokenRule{"training.data",
                        "stress values are activations, but a model with a vocabulary reads tokens; "
                        "remove one of the two"};
    const double tokens = static_cast<double>(m.seq) * static_cast<double>(m.batch);
    if (const std::int64_t chunks = cell.training.loss_chunks; (m.seq % chunks) * (m.batch % chunks) % chunks != 0)
      return BrokenRule{"training.loss_chunks",
                        fmt::format("{} parts of equal size cannot have {} tokens between them; write a divisor of "
                                    "`seq` x `batch`",
                                    chunks, tokens)};
    if (static_cast<double>(m.vocabulary) * (tokens + static_cast<double>(m.hidden)) > kMostElements)
      return BrokenRule{"model.vocabulary", fmt::format("logits of {} tokens x vocabulary {} are above 2^52 elements",
                                                        tokens, m.vocabulary)};
    return std::nullopt;
  }
  if (loss == Loss::kCrossEntropy)
    return BrokenRule{"model.vocabulary",
                      "missing; cross_entropy needs a language model with its number of "
                      "tokens; write `vocabulary: 256`, or another `loss`"};
  return std::nullopt;
}

Broken broken_bf16_layers_rule(const CellConfig& cell) {
  const std::int64_t first = cell.training.first_layers_bf16, last = cell.training.last_layers_bf16;
  if (first + last <= cell.model.layers) return std::nullopt;
  return BrokenRule{
      last > 0 ? "training.last_layers_bf16" : "training.first_layers_bf16",
      fmt::format("{} first and {} last layers are more than the model's {}", first, last, cell.model.layers)};
}

Broken broken_frozen_rule(const CellConfig& cell) {
  const std::int64_t frozen = cell.training.frozen_layers, layers = cell.model.layers;
  if (frozen > layers)
    return BrokenRule{"training.frozen_layers", fmt::format("{}, but the model has {} layers; write {} or less", frozen,
                                                            layers, is_language_model(cell) ? layers : layers - 1)};
  if (frozen == layers && !is_language_model(cell))
    return BrokenRule{"training.frozen_layers",
                      fmt::format("all {} layers of a model without a vocabulary are frozen, so nothing would be "
                                  "trained; write {} or less, or `vocabulary`, whose norm and head are trained",
                                  layers, layers - 1)};
  if (frozen == 0 || is_library(cell)) return std::nullopt;
  if (std::ranges::find(cell.measure, "parity") != cell.measure.end())
    return BrokenRule{"training.frozen_layers",
                      fmt::format("{}, but parity scores the gradient of every parameter, and a frozen one has none; "
                                  "measure `reference`, or remove one of the two",
                                  frozen)};
  if (cell.training.resume_at > 0)
    return BrokenRule{"training.resume_at",
                      "the optimizer of a model with frozen layers is not saved; remove one of the two"};
  return std::nullopt;
}

Broken broken_checkpoint_rule(const CellConfig& cell) {
  const TrainingConfig& t = cell.training;
  if (t.checkpoint_every == 1) return std::nullopt;
  if (t.checkpoint == Recompute::kNone)
    return BrokenRule{"training.checkpoint_every", "nothing is recomputed; write `checkpoint: full` too"};
  if (t.checkpoint_every <= cell.model.layers) return std::nullopt;
  return BrokenRule{"training.checkpoint_every",
                    fmt::format("the model has {} layers, so none of them would be recomputed", cell.model.layers)};
}

Broken broken_selective_rule(const CellConfig& cell) {
  const TrainingConfig& t = cell.training;
  if (!is_selective(t.checkpoint)) return std::nullopt;
  if (cell.model.layer != "transformer_layer")
    return BrokenRule{"training.checkpoint",
                      fmt::format("{} is for transformer_layer: what the last product of {} returns leaves the layer, "
                                  "and the next layer keeps it; write `full`",
                                  t.checkpoint.text(), cell.model.layer)};
  if (t.fp8_attention)
    return BrokenRule{
        "training.fp8_attention",
        fmt::format("{} keeps what attention returns in 16 bits, and FP8 attention saves eight bits of it; "
                    "write `checkpoint: full`, or remove `fp8_attention`",
                    t.checkpoint.text())};
  if (cell.context_parallel > 1)
    return BrokenRule{"context_parallel",
                      fmt::format("{} keeps what attention over entire sequences returns; write `checkpoint: full`, or "
                                  "remove `context_parallel`",
                                  t.checkpoint.text())};
  return std::nullopt;
}

Broken broken_ranks_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  const std::int64_t most = vocabulary.max_ranks ? vocabulary.max_ranks(cell.device) : 1;
  if (cell.ranks <= most) return std::nullopt;
  return BrokenRule{"ranks", fmt::format("{} ranks, but device '{}' trains on at most {} in one process; use device "
                                         "meta, or start the ranks by mpirun or torchrun",
                                         cell.ranks, cell.device, most)};
}

Broken broken_mesh_rule(const CellConfig& cell) {
  const MeshText mesh = mesh_of(cell);
  if (const std::int64_t takes = std::int64_t{mesh.replicas} * mesh.shards; takes != cell.ranks)
    return BrokenRule{"mesh", fmt::format("{} takes {} rank{}, but `ranks` is {}; make them equal", cell.mesh, takes,
                                          takes == 1 ? "" : "s", cell.ranks)};
  if (has_ranks(cell)) return std::nullopt;
  if (cell.ranks > 1)
    return BrokenRule{"sharding", fmt::format("none, but there are {} ranks; `ddp` keeps the model unsharded on each "
                                              "of them",
                                              cell.ranks)};
  return std::nullopt;
}

/// What ranks that split sequences between them do not support yet.
Broken broken_context_rule(const CellConfig& cell) {
  const int ranks = cell.context_parallel;
  if (ranks == 1) return std::nullopt;
  if (cell.ranks % ranks != 0)
    return BrokenRule{"context_parallel",
                      fmt::format("{} ranks split every sequence, but `ranks` is {}; write 1, or a divisor of `ranks`",
                                  ranks, cell.ranks)};
  if (cell.model.seq % (2 * ranks) != 0)
    return BrokenRule{"model.seq", fmt::format("{} is not a multiple of {}, but each of {} ranks has two chunks of one "
                                               "length of every sequence; write a multiple",
                                               cell.model.seq, 2 * ranks, ranks)};
  if (cell.model.window != 0)
    return BrokenRule{"model.window",
                      "ranks that split sequences see all tokens before a query; leave it out, or `context_parallel`"};
  if (cell.model.dropout != 0.0)
    return BrokenRule{"model.dropout",
                      "masks do not follow tokens to the ranks that split their sequence; write 0, or no "
                      "`context_parallel`"};
  if (cell.training.data == Data::kStress)
    return BrokenRule{"training.data",
                      "stress values are made for entire sequences; write `normal`, or no `context_parallel`"};
  if (cell.training.fp8_mha)
    return BrokenRule{"training.fp8_mha",
                      "ranks that split sequences cast Q, K and V in attention; remove it, or `context_parallel`"};
  return std::nullopt;
}

/// What ranks that have experts between them need, and what they do not support yet.
Broken broken_expert_parallel_rule(const CellConfig& cell) {
  const int ranks = cell.expert_parallel;
  if (ranks == 1) return std::nullopt;
  if (cell.model.experts % ranks != 0)
    return BrokenRule{"expert_parallel",
                      fmt::format("{} ranks have {} experts between them, each the same number; write a divisor of "
                                  "`experts`",
                                  ranks, cell.model.experts)};
  if (const int shards = mesh_of(cell).shards; shards % ranks != 0)
    return BrokenRule{"expert_parallel",
                      fmt::format("{} of the ranks that shard have the experts between them, but there {} {}; write "
                                  "{}, or more `ranks`",
                                  ranks, shards == 1 ? "is" : "are", shards,
                                  shards == 1 ? "1" : fmt::format("a divisor of {}", shards))};
  if (cell.context_parallel > 1)
    return BrokenRule{"expert_parallel",
                      "ranks that split sequences compute with all experts; remove it, or `context_parallel`"};
  return std::nullopt;
}

Broken broken_subject_rule(const CellConfig& cell) {
  if (!is_library(cell) || cell.fix.empty()) return std::nullopt;
  return BrokenRule{"fix", fmt::format("it is a switch of this program's own runtime, which `subject: {}` does not "
                                       "run; name two versions of the library in `versions`, or remove one of the two",
                                       cell.subject)};
}

Broken broken_optimizer_rule(const CellConfig& cell, const Vocabulary& vocabulary) {
  const TrainingConfig& t = cell.training;
  if (t.master_weights == Master::kRemainder && t.param_dtype != ParamDType::kBF16)
    return BrokenRule{"training.master_weights",
                      fmt::format("remainder keeps the 16 bits that bf16 parameters lack, but param_dtype is {}; write "
                                  "none, f32 or `param_dtype: bf16`",
                                  t.param_dtype.text())};
  const bool eight_bits = t.quantized_weights && (!vocabulary.quantizes || vocabulary.quantizes(t.recipe));
  if (!is_library(cell) && eight_bits && t.optimizer == Optimizer::kAdam && t.master_weights == Master::kNone)
    return BrokenRule{"training.master_weights",
                      fmt::format("{}, but adam needs f32 or remainder if quantized_weights are on: a step is "
                                  "smaller than what eight bits can distinguish",
                                  t.master_weights.text())};
  return std::nullopt;
}

void add_schedule_rules(const TrainingConfig& t, Rules& out) {
  const bool cosine = t.learning_rate_schedule == RateSchedule::kCosine;
  const std::int64_t end = t.decay_steps == 0 ? t.steps : t.decay_steps;
  if (cosine && t.warmup_steps >= end)
    out.push_back({"training.warmup_steps",
                   fmt::format("{}, but cosine ends at step {}; the warm-up must be shorter", t.warmup_steps, end)});
}

Broken broken_data_rule(const CellConfig& cell) {
  if (cell.training.data == Data::kTeacher && (is_language_model(cell) || cell.training.loss != Loss::kMse))
    return BrokenRule{"training.data",
                      "a teacher makes targets of activations, for `loss: mse` and no `vocabulary`; write both, or "
                      "`normal`, or `text` for a language model"};
  if (cell.training.data != Data::kText || is_language_model(cell)) return std::nullopt;
  return BrokenRule{"training.data",
                    "text needs a model that reads tokens; write `vocabulary` under `model`, or remove it"};
}

Broken broken_resume_rule(const TrainingConfig& t) {
  if (t.resume_at == 0) return std::nullopt;
  if (t.resume_at >= t.steps)
    return BrokenRule{"training.resume_at",
                      fmt::format("{} comes after the last of {} steps; the first is step 0", t.resume_at, t.steps)};
  if (t.optimizer == Optimizer::kForeachAdam)
    return BrokenRule{"training.resume_at",
                      "the state of foreach_adam is not saved; write `optimizer: adam` or `optimizer: none`"};
  if (t.initial_history_length > 0)
    return BrokenRule{
        "training.initial_history_length",
        "saved histories have the length of the recipe's, and a model that is built again has another length; remove "
        "one of the two"};
  if (t.weight_average)
    return BrokenRule{"training.resume_at", "the average of the weights is not saved; remove one of the two"};
  return std::nullopt;
}

Broken broken_file_rule(std::string_view key, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return BrokenRule{std::string(key), fmt::format("there is no file {}; a path is relative to the scenario's folder",
                                                  std::filesystem::absolute(path).lexically_normal().string())};
}

Broken broken_version_rule(std::string_view key, const std::string& version) {
  const auto [library, release] = pinned_release(version);
  if (version.empty() || is_folder(version) || (!library.empty() && !release.empty())) return std::nullopt;
  return BrokenRule{std::string(key), fmt::format("{} is no version for a script; write a release with its library "
                                                  "(torch==2.10.0), an environment or a checkout (./TransformerEngine)",
                                                  version)};
}

/// Rules of cells that run a program of the user's, whose model and training are its own.
Rules broken_script_rules(const CellConfig& cell) {
  constexpr std::array<std::string_view, 4> kMeasured{"memory", "traffic", "host", "parity"};
  Rules out;
  const auto add = [&](Broken broken) {
    if (broken) out.push_back(std::move(*broken));
  };
  if (cell.script.path.empty()) out.push_back({"script", "missing; name the program, as in `script: train.py`"});
  add(broken_file_rule("script", cell.script.path));
  add(broken_file_rule("patch", cell.script.patch_before));
  add(broken_file_rule("patch", cell.script.patch_after));
  add(broken_subject_rule(cell));
  add(broken_version_rule("versions.before", cell.versions.before));
  add(broken_version_rule("versions.after", cell.versions.after));
  if (cell.device != "cpu" && cell.device != "cuda")
    out.push_back({"device", fmt::format("a script cannot run on {}; write cpu or cuda", cell.device)});
  if (cell.control == Control::kPlanted)
    out.push_back({"control", "nothing can be planted in a script; write `control: same`, whose arms are equal"});
  for (const std::string& group : cell.measure)
    if (std::ranges::find(kMeasured, group) == kMeasured.end())
      out.push_back({"measure",
                     fmt::format("{} is not measured in a script; there are memory, traffic, host and parity", group)});
  return out;
}

}  // namespace

std::vector<BrokenRule> broken_rules(const CellConfig& cell, const Vocabulary& vocabulary) {
  if (is_script(cell)) return broken_script_rules(cell);
  Rules out;
  const auto add = [&](Broken broken) {
    if (broken) out.push_back(std::move(*broken));
  };
  const auto is_broken = [&](std::string_view key) {
    return std::ranges::find(out, key, &BrokenRule::key) != out.end();
  };
  if (cell.control != Control::kNone && !cell.fix.empty())
    add(BrokenRule{"control", "a control cell's before arm reverts no fix; remove `control` or `fix`"});
  add_model_rules(cell.model, cell.training.micro_batches, out);
  add(broken_attention_rule(cell, vocabulary));
  add(broken_experts_rule(cell));
  add(broken_language_rule(cell));
  add(broken_bf16_layers_rule(cell));
  if (!is_broken("model.layers")) add(broken_frozen_rule(cell));
  if (!is_broken("model.layers")) add(broken_checkpoint_rule(cell));
  add(broken_selective_rule(cell));
  add(broken_ranks_rule(cell, vocabulary));
  add(broken_context_rule(cell));
  add(broken_expert_parallel_rule(cell));
  add(broken_mesh_rule(cell));
  add(broken_subject_rule(cell));
  if (Broken broken = broken_optimizer_rule(cell, vocabulary); broken && !is_broken(broken->key)) add(broken);
  add_schedule_rules(cell.training, out);
  add(broken_data_rule(cell));
  add(broken_resume_rule(cell.training));
  if (!vocabulary.broken_rules) return out;
  // Rules of layers hold whatever other keys say, but ask for sizes that are there and for heads that divide them.
  for (const std::string_view key : {"model.hidden", "model.seq", "model.batch", "model.layers", "model.vocabulary",
                                     "training.micro_batches", "training.data"})
    if (is_broken(key)) return out;
  CellConfig mended = cell;
  if (is_broken("model.heads") || is_broken("model.kv_heads")) {
    mended.model.heads = 1;
    mended.model.kv_heads = mended.model.head_dim = 0;
  }
  for (BrokenRule& rule : vocabulary.broken_rules(mended)) out.push_back(std::move(rule));
  return out;
}

}  // namespace fp8lab
