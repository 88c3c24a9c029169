#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/word.h"
#include "recipe/recipe.h"

// CellConfig is one point of a scenario's matrix, ArmResult is what the process of an arm reports. Both are plain data:
// scenario.h parses, measure.h runs, predict.h computes the closed forms.
namespace fp8lab {

/// The largest value of key `ranks`.
inline constexpr int kMostRanks = 65536;

enum class OpFuser { kNone, kMlp };
template <>
inline constexpr std::array<std::string_view, 2> kWords<OpFuser>{"none", "mlp"};

enum class GroupSplit { kEven, kUneven };
template <>
inline constexpr std::array<std::string_view, 2> kWords<GroupSplit>{"even", "uneven"};

enum class RouterScore { kSoftmax, kSigmoid };
template <>
inline constexpr std::array<std::string_view, 2> kWords<RouterScore>{"softmax", "sigmoid"};

enum class HeadWeight { kOwn, kTied };
template <>
inline constexpr std::array<std::string_view, 2> kWords<HeadWeight>{"own", "tied"};

/// What has biases. kAll: products and layer norms; kQkv: only the product that makes Q, K and V.
enum class Bias { kNone, kAll, kQkv };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Bias>{"false", "true", "qkv"};

enum class Positions { kNone, kLearned };
template <>
inline constexpr std::array<std::string_view, 2> kWords<Positions>{"none", "learned"};

enum class Optimizer { kNone, kAdam, kForeachAdam, kSgd };
template <>
inline constexpr std::array<std::string_view, 4> kWords<Optimizer>{"none", "adam", "foreach_adam", "sgd"};

enum class Master { kNone, kF32, kRemainder };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Master>{"none", "f32", "remainder"};

enum class Moments { kF32, kBF16, kF16, kE4M3 };
template <>
inline constexpr std::array<std::string_view, 4> kWords<Moments>{"f32", "bf16", "f16", "e4m3"};

enum class Loss { kSum, kMse, kCrossEntropy };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Loss>{"sum", "mse", "cross_entropy"};

enum class Data { kNormal, kStress, kTeacher, kText };
template <>
inline constexpr std::array<std::string_view, 4> kWords<Data>{"normal", "stress", "teacher", "text"};

enum class Tokens { kByte, kCharacter };
template <>
inline constexpr std::array<std::string_view, 2> kWords<Tokens>{"byte", "character"};

enum class RateSchedule { kConstant, kCosine };
template <>
inline constexpr std::array<std::string_view, 2> kWords<RateSchedule>{"constant", "cosine"};

enum class ParamDType { kBF16, kF32 };
template <>
inline constexpr std::array<std::string_view, 2> kWords<ParamDType>{"bf16", "f32"};

enum class ReduceDType { kBF16, kF32 };
template <>
inline constexpr std::array<std::string_view, 2> kWords<ReduceDType>{"bf16", "f32"};

enum class MastersFrom { kInitialValues, kHostCopy, kEightBits };
template <>
inline constexpr std::array<std::string_view, 3> kWords<MastersFrom>{"initial_values", "host_copy", "eight_bits"};

enum class Recompute { kNone, kFull, kSelective, kSelectiveAlternate };
template <>
inline constexpr std::array<std::string_view, 4> kWords<Recompute>{"none", "full", "selective", "selective_alternate"};
/// True if recomputed layers keep the results of attention, and of products.
constexpr bool is_selective(Recompute recompute) {
  return recompute == Recompute::kSelective || recompute == Recompute::kSelectiveAlternate;
}

enum class Sharded { kNone, kFsdp, kDdp };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Sharded>{"none", "fsdp", "ddp"};

enum class Control { kNone, kSame, kPlanted };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Control>{"none", "same", "planted"};

enum class Rounding { kNearest, kStochastic };
template <>
inline constexpr std::array<std::string_view, 2> kWords<Rounding>{"nearest", "stochastic"};

enum class Fp8Sums { kF32, kTensorCore };
template <>
inline constexpr std::array<std::string_view, 2> kWords<Fp8Sums>{"f32", "tensor_core"};

enum class Launcher { kPython, kTorchrun };
template <>
inline constexpr std::array<std::string_view, 2> kWords<Launcher>{"python", "torchrun"};

/// Scenario key `model`. Lengths are elements; `seq`: tokens of a sequence; `batch`: sequences in a micro-batch.
struct ModelConfig {
  std::string layer = "transformer_layer";  ///< a row of the layer table (nn/layer_table.h)
  std::string form = "gpt";                 ///< a row of form_table()
  std::int64_t layers = 1;
  std::int64_t hidden = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;      ///< 0: equal to heads
  std::int64_t head_dim = 0;      ///< columns of a head; 0: hidden / heads
  std::int64_t window = 0;        ///< tokens that a query sees, its own and those before it; 0: all of them
  std::int64_t window_every = 1;  ///< 2: every second layer has the window, beginning with the first
  bool attention_sinks = false;   ///< each head has a learned logit in the sum of its softmax
  bool qk_norm = false;           ///< RMSNorm of every query and key head, before they are rotated
  std::int64_t kv_rank = 0;    ///< columns of the latent from which keys and values are made; 0: there are no latents
  std::int64_t q_rank = 0;     ///< columns of the latent from which queries are made
  std::int64_t rope_dim = 0;   ///< rotated columns of a head, in addition to head_dim, if there are latents
  std::int64_t value_dim = 0;  ///< columns of a head of values if there are latents; 0: head_dim
  std::int64_t ffn = 0;        ///< 0: 4 x hidden
  double swiglu_limit = 0.0;   ///< the limit of clamped SwiGLU; 0: SwiGLU without limits
  std::int64_t seq = 0;
  std::int64_t batch = 1;
  Word<OpFuser> op_fuser = OpFuser::kNone;  ///< mlp: build the MLP as one fused chain of operations
  double dropout = 0.0;                     ///< attention and hidden dropout probability
  std::int64_t experts = 4;                 ///< experts of grouped_linear, or of a mixture
  std::int64_t top_k = 0;       ///< experts of a token in a mixture, which replaces the MLP; 0: one MLP for all tokens
  std::int64_t expert_ffn = 0;  ///< inner width of an expert in a mixture; 0: the width of the MLP, `ffn`
  std::int64_t shared_experts = 0;                   ///< experts that every token of a mixture has, not by choice
  std::int64_t dense_layers = 0;                     ///< layers at the start that have one MLP instead of a mixture
  Word<RouterScore> router = RouterScore::kSoftmax;  ///< what the weights of chosen experts are in proportion to
  double router_scale = 1.0;                         ///< the sum of a token's weights
  std::int64_t expert_groups = 0;                    ///< groups of experts; 0: a token may have any experts
  std::int64_t top_groups = 0;                       ///< groups among whose experts a token's are chosen
  double router_bias_rate = 0.0;                     ///< a step of the biases of the choice; 0: there are no biases
  double router_aux_loss = 0.0;                      ///< coefficient of the routers' auxiliary loss; 0: there is none
  Word<GroupSplit> split = GroupSplit::kEven;        ///< uneven: groups of different sizes, one of them empty
  std::int64_t vocabulary = 0;  ///< tokens of a language model; 0: no embedding and no head, inputs are activations
  Word<HeadWeight> head = HeadWeight::kOwn;  ///< tied: the head's matrix is the embedding's
  /// Of the embedding; left out: learned, unless the form has rotary embedding.
  std::optional<Word<Positions>> positions{};
  std::optional<Word<Bias>> bias{};  ///< left out: as the form has it
  double init_std = 0.02;            ///< standard deviation of matrices' initial values
  bool scaled_residuals = false;     ///< matrices that add to the residual stream: init_std / sqrt(2 layers)
};

/// Scenario key `training`.
struct TrainingConfig {
  std::int64_t steps = 1;
  std::int64_t validation_batches =
      0;                            ///< forward passes without gradients of a validation; one precedes the first step
  std::int64_t validate_every = 0;  ///< steps between further validations; one more follows the last step; 0: none
  std::int64_t micro_batches = 1;   ///< forward and backward passes of a step, each over `batch` sequences of its own
  Word<Optimizer> optimizer = Optimizer::kNone;  ///< adam: one fused pass; foreach_adam, sgd: list operations
  double learning_rate = 1e-4;
  Word<RateSchedule> learning_rate_schedule = RateSchedule::kConstant;  ///< after the warm-up
  std::int64_t warmup_steps = 0;                                        ///< steps before the rate is learning_rate
  double final_learning_rate = 0.0;                                     ///< at the end of cosine
  std::int64_t decay_steps = 0;                                         ///< the step at which it ends; 0: `steps`
  double beta1 = 0.9;                                                   ///< decay of the mean of gradients
  double beta2 = 0.999;                                                 ///< decay of the mean of their squares
  Word<Master> master_weights = Master::kNone;  ///< remainder: the 16 bits that bf16 parameters lack, kept in addition
  Word<Moments> moments = Moments::kF32;        ///< type of the optimizer's moments
  Word<Rounding> weight_rounding = Rounding::kNearest;  ///< rounding of new weights without masters
  double weight_decay = 0.0;
  bool decoupled_decay = true;       ///< true: AdamW; false: decay is added to the gradient (L2)
  bool decay_only_matrices = false;  ///< biases and norms do not decay
  double clip_norm = 0.0;            ///< gradients are scaled down to this norm over all ranks; 0: never
  bool weight_average = false;       ///< keep an exponential average of the weights
  /// stress: values that excite every rule of a cast (train/stress_data.h); teacher: targets that a network makes of
  /// the inputs (train/teacher.h); text: windows of a corpus.
  Word<Data> data = Data::kNormal;
  std::string corpus;                   ///< a file; empty: the King James Bible (data/corpus.h)
  Word<Tokens> tokens = Tokens::kByte;  ///< character: those that occur in the corpus
  std::int64_t loss_chunks = 1;         ///< parts of the tokens whose logits follow one another, in PyTorch
  Word<Loss> loss = Loss::kSum;  ///< sum of outputs, mse against a seeded target, or a language model's cross_entropy
  Word<ParamDType> param_dtype = ParamDType::kBF16;
  std::string recipe = "bf16";        ///< a row of the recipe table
  RecipeOptions recipe_options;       ///< key `training.recipe_options`; a value left out keeps the recipe's default
  bool quantized_weights = false;     ///< GEMM weights live in eight bits; a recipe without eight bits ignores it
  std::optional<bool> deferred_init;  ///< each rank initialises its shard only, after sharding; left out: if sharded
  /// Delayed scaling: rows of the amax histories with which the model is built. The first forward resizes them to the
  /// recipe's number of rows. 0: the recipe's number from the beginning.
  std::int64_t initial_history_length = 0;
  /// From what the masters of FP8 weights start: the values that were cast, computed again or kept in host
  /// memory; or the eight bits.
  Word<MastersFrom> masters_from = MastersFrom::kInitialValues;
  bool fused_quantize = true;              ///< norms and activations quantize their outputs; false: a cast follows
  std::int64_t frozen_layers = 0;          ///< layers at the start that take no gradient, as the embedding then
  std::int64_t first_layers_bf16 = 0;      ///< layers at the start that the recipe leaves in the parameters' type
  std::int64_t last_layers_bf16 = 0;       ///< and at the end
  Word<Fp8Sums> fp8_sums = Fp8Sums::kF32;  ///< sums of the host's FP8 products in linear layers
  bool fp8_attention = false;              ///< attention's matrix products in FP8 (recipes that support it)
  bool fp8_attention_backward = true;      ///< false: backward of FP8 attention computes in 16 bits
  bool fp8_mha = false;                    ///< with fp8_attention: eight-bit tensors between it and the linear layers
  bool fp8_dispatch = false;               ///< tokens and gradients that travel to experts are cast before
  bool cache_weights = false;              ///< eight-bit copies of 16-bit weights live on, and are cast once in a step
  /// full: recompute layers' activations in backward; selective: except the results of matrix products and attention;
  /// selective_alternate: except the results of attention and of every second product, from the first on.
  Word<Recompute> checkpoint = Recompute::kNone;
  /// With `checkpoint` one of so many layers is recomputed, the last of each group: 2: the second, the fourth ...
  std::int64_t checkpoint_every = 1;
  bool keep_loss = true;      ///< false: the loss is dropped before memory is read (negative control)
  bool deterministic = true;  ///< the same bits on every run; false: kernels may add in the order that is fastest
  /// Before this step the training state is saved to files, model, sharding and optimizer are built again, and the
  /// state is loaded. 0: never.
  std::int64_t resume_at = 0;
  std::uint64_t seed = 1234;
};

/// Scenario key `versions`, of a library: a release, a folder, or empty for the installed one.
struct VersionsConfig {
  std::string before;  ///< empty: no before arm
  std::string after;   ///< runs in the bf16 arm too
};

/// Keys of `subject: script`: a training program of the user's, which `fp8lab run` watches.
struct ScriptConfig {
  std::string path;                        ///< the Python program; key `script`
  std::optional<Word<Launcher>> launcher;  ///< left out: torchrun for several ranks
  std::string variant;                     ///< any text, for an axis of the program's own; key `variant`
  std::string patch_before, patch_after;   ///< diffs that are applied to a copy of the arm's folder; empty: none
  /// Arguments of the program. Planned cells have values in place of `{key}`.
  std::vector<std::string> arguments;
  std::optional<std::vector<std::string>> before_arguments;  ///< for the before arm; left out: `arguments`
};

/// One point of a scenario's matrix with every axis applied.
struct CellConfig {
  std::string scenario;
  std::string id;  ///< "<scenario>/<axis>=<value>,..." in the order the axes are declared
  std::vector<std::pair<std::string, std::string>> axes;
  std::string device = "cpu";   ///< a row of the device table
  std::string arch = "hopper";  ///< a row of the architecture table; device `cuda` reads it from the GPU
  std::string subject = "own";  ///< a row of kSubjects (subject_keys.h): the own runtime, or a library
  int ranks = 1;
  int context_parallel = 1;                       ///< ranks that split every sequence between them; 1: none do
  int expert_parallel = 1;                        ///< ranks that have a layer's experts between them; 1: each has all
  std::string mesh;                               ///< "4": shards; "2x4": replicas x shards; empty: all ranks shard
  std::optional<Word<Sharded>> sharding;          ///< left out: fsdp for several ranks or a mesh
  bool reshard_after_forward = true;              ///< false: unsharded parameters live until the end of backward
  bool gather_ahead = false;                      ///< a layer's weights are gathered while the layer before it computes
  std::optional<Word<ReduceDType>> reduce_dtype;  ///< type in which gradients are reduced; left out: their own
  std::int64_t capacity = 0;               ///< device memory of each rank, in bytes; 0: as much as the device has
  Word<Control> control = Control::kNone;  ///< what the before arm has more, without a fix: nothing, or planted changes
  std::string fix;                         ///< a row of the fix table, or empty for a plain cell
  VersionsConfig versions;                 ///< versions of a library
  ScriptConfig script;                     ///< what `subject: script` runs
  ModelConfig model;
  TrainingConfig training;
  std::vector<std::string> measure;  ///< metric groups: memory, parity, reference, host, time, traffic
  double timeout_s = 0;              ///< seconds that an arm may run; 0: no limit
};

/// The most samples of one metric that results keep.
inline constexpr std::size_t kMostSamples = 64;

/// The loss of a validation: the mean over its batches and over ranks.
struct ValidationLoss {
  std::int64_t step = 0;  ///< how many steps were trained before
  double loss = 0.0;
};

/// The most losses that results keep, and the most of validations.
inline constexpr std::size_t kMostLosses = 1024;

/// True if the layers are norms: they have no matrix products.
inline bool is_norm(const ModelConfig& model) { return model.layer == "layernorm" || model.layer == "rmsnorm"; }

/// True if the MLP of each layer is a mixture of experts.
inline bool routes_tokens(const ModelConfig& model) { return model.top_k > 0; }

/// Inner width of an MLP that all tokens of a layer have.
inline std::int64_t dense_width(const ModelConfig& model) { return model.ffn == 0 ? 4 * model.hidden : model.ffn; }

/// Inner width of the MLP, or of each expert in a mixture.
inline std::int64_t mlp_width(const ModelConfig& model) {
  return routes_tokens(model) && model.expert_ffn > 0 ? model.expert_ffn : dense_width(model);
}

/// The model as layer `layer` has it: without a mixture, if that is one of the layers with one MLP.
inline ModelConfig model_of_layer(ModelConfig model, std::int64_t layer) {
  if (layer < model.dense_layers) model.top_k = 0;
  if (layer % model.window_every != 0) model.window = 0;
  return model;
}

/// True if a router's choice of experts has biases.
inline bool has_router_biases(const ModelConfig& model) { return routes_tokens(model) && model.router_bias_rate > 0.0; }

/// True if a token's experts are limited to some groups.
inline bool has_expert_groups(const ModelConfig& model) { return routes_tokens(model) && model.expert_groups > 0; }

/// True if queries, keys and values are made from latents (MLA).
inline bool has_latents(const ModelConfig& model) { return model.kv_rank > 0; }

/// Columns of a head of queries, keys or values; with latents the columns of queries and keys that are not rotated.
inline std::int64_t head_dim_of(const ModelConfig& model) {
  return model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
}

/// Columns of a head of queries or keys.
inline std::int64_t key_dim_of(const ModelConfig& model) {
  return head_dim_of(model) + (has_latents(model) ? model.rope_dim : 0);
}

/// Columns of a head of values.
inline std::int64_t value_dim_of(const ModelConfig& model) {
  return has_latents(model) && model.value_dim > 0 ? model.value_dim : head_dim_of(model);
}

/// True if the cell trains a language model: tokens in, logits out.
inline bool is_language_model(const CellConfig& cell) { return cell.model.vocabulary > 0; }

/// True if the cell has a before arm: of a fix, of a library's version, of a script's arguments or patch, or as a
/// control of the measurement.
inline bool has_before(const CellConfig& cell) {
  return !cell.fix.empty() || !cell.versions.before.empty() || cell.control != Control::kNone ||
         cell.script.before_arguments.has_value() || !cell.script.patch_before.empty();
}

/// The sides a cell is run on, each in a child process.
enum class Arm { kBefore, kAfter, kBf16 };
inline constexpr std::array kArms{Arm::kBefore, Arm::kAfter, Arm::kBf16};

/// A figure, or nothing with the reason. An absent figure is never written as 0, and files never hold NaN.
struct MetricValue {
  std::optional<double> value;
  std::optional<double> predicted;
  std::string unit;    ///< "B", "ns", "ms", "dB", "1" ...
  std::string reason;  ///< why value is absent
};

/// The distance of one tensor from the same tensor of the BF16 arm.
struct TensorNoise {
  std::string tensor;             ///< a parameter's name, or "output"
  std::string of;                 ///< output | gradient | weight
  std::optional<double> sqnr_db;  ///< signal to quantization noise over the values of all ranks
  std::string reason;             ///< why sqnr_db is absent
};

/// The casts of one tensor to eight bits at some steps, over both orientations if each has its own scales.
struct CastSeries {
  std::string tensor;                          ///< "layers[0].mlp.fc1 gradient"
  std::vector<std::int64_t> steps;             ///< from 0, ascending; the lists below have an entry for each
  std::vector<std::optional<double>> sqnr_db;  ///< what a product reads against what was cast; absent: no noise
  std::vector<double> clip_fraction;           ///< share of values beyond the largest of the type
  std::vector<double> underflow_fraction;      ///< share of values that are not 0 and became 0
};

/// The most steps at which casts are measured.
inline constexpr std::int64_t kMostCastSteps = 6;

/// What one arm's process reports.
struct ArmResult {
  std::string status = "ok";  ///< ok | crashed | timeout | out_of_memory | error
  std::string reason;         ///< one line; empty for status ok
  std::string signal;         ///< "SIGSEGV" when a signal ended the arm's process
  std::string output_tail;    ///< the end of the process's output; empty for status ok
  double seconds = 0.0;
  std::string measured_in;  ///< id of the other cell that ran an equal arm and shares this result; else empty
  std::map<std::string, MetricValue> metrics;  ///< by metric name
  /// Bytes by holder at the end of backward ("context of layers[0].attention: q, k, v"), largest first.
  std::vector<std::pair<std::string, std::int64_t>> retained_by_holder;
  /// Bytes by holder at the peak, largest first; in results, holders that differ by index are one ("layers[*].fc1").
  std::vector<std::pair<std::string, std::int64_t>> peak_by_holder;
  /// Operations that the modelled architecture lacks and the device emulated; empty if nothing was emulated.
  std::string emulated;
  /// The mean loss over ranks by step; empty unless parity was measured. A run of more than kMostLosses steps keeps
  /// n = kMostLosses of them: the i-th, from 0, belongs to step i * (steps - 1) / (n - 1), rounded down.
  std::vector<double> losses;
  /// In the order of steps; empty unless parity was measured and the cell validates. A run with more than kMostLosses
  /// validations keeps kMostLosses of them, by the rule of `losses`.
  std::vector<ValidationLoss> validation_losses;
  std::vector<TensorNoise> noise;  ///< by tensor of the last step; empty unless parity was measured
  std::vector<CastSeries> casts;   ///< in the order of a step; empty unless parity was measured and the recipe casts
  /// By metric, the samples whose median the metric is, ascending. Of more than kMostSamples, that many at evenly
  /// spaced places of the sorted list are kept, the first and the last among them.
  std::map<std::string, std::vector<double>> samples;
  /// By timed metric, the figure of each process that ran the arm, in the order in which they ran; the metric is their
  /// median. Empty if one process ran it. Processes of the same place in this list ran one after the other.
  std::map<std::string, std::vector<double>> by_process;
  /// One line for each request of the cell that was not met, with the reason, and for each choice of the device
  /// between several algorithms.
  std::vector<std::string> notes;
  /// Hash in hex over the losses and the unsharded weights of every rank; empty unless parity was measured.
  std::string values_hash;
  std::string sequence_hash;  ///< hash of all allocations, in hex; equal on every device for the same schedule
  std::string timeline_json;  ///< the memory timeline document, empty when not recorded
};

}  // namespace fp8lab
