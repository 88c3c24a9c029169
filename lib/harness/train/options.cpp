#include "harness/train/options.h"

#include "harness/cell/sharding_keys.h"

namespace fp8lab {
namespace {

MasterWeights master_weights(Master master) {
  switch (master) {
    case Master::kNone: return MasterWeights::kNone;
    case Master::kF32: return MasterWeights::kF32;
    case Master::kRemainder: return MasterWeights::kRemainder;
  }
  return MasterWeights::kNone;
}

InitialValuesIn initial_in(MastersFrom from) {
  switch (from) {
    case MastersFrom::kInitialValues: return InitialValuesIn::kSeed;
    case MastersFrom::kHostCopy: return InitialValuesIn::kHost;
    case MastersFrom::kEightBits: return InitialValuesIn::kLost;
  }
  return InitialValuesIn::kSeed;
}

KeptProducts kept_products(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
    case Recompute::kFull: return KeptProducts::kNone;
    case Recompute::kSelective: return KeptProducts::kAll;
    case Recompute::kSelectiveAlternate: return KeptProducts::kEverySecond;
  }
  return KeptProducts::kNone;
}

LayerForm form_of(const ModelConfig& model) {
  LayerForm form = layer_form(model.form);
  if (model.bias) form.bias = *model.bias == Bias::kAll;
  return form;
}

bool learns_positions(const ModelConfig& model) {
  if (model.positions) return *model.positions == Positions::kLearned;
  return !layer_form(model.form).rope;
}

}  // namespace

LayerConfig layer_config(const ModelConfig& model, bool fp8_attention) {
  return {.form = form_of(model),
          .hidden = model.hidden,
          .heads = model.heads,
          .kv_heads = model.kv_heads == 0 ? model.heads : model.kv_heads,
          .columns_of_head = model.head_dim,
          .q_rank = model.q_rank,
          .kv_rank = model.kv_rank,
          .rope_dim = has_latents(model) ? model.rope_dim : 0,
          .columns_of_value = has_latents(model) ? model.value_dim : 0,
          .qkv_bias_alone = model.bias == Bias::kQkv,
          .window = model.window,
          .attention_sinks = model.attention_sinks,
          .qk_norm = model.qk_norm,
          .ffn = mlp_width(model),
          .swiglu_limit = static_cast<float>(model.swiglu_limit),
          .seq = model.seq,
          .batch = model.batch,
          .fp8_attention = fp8_attention,
          .fuse_mlp = model.op_fuser == OpFuser::kMlp,
          .dropout = static_cast<float>(model.dropout),
          .experts = model.experts,
          .top_k = model.top_k,
          .shared_experts = model.shared_experts,
          .sigmoid_router = model.router == RouterScore::kSigmoid,
          .router_scale = static_cast<float>(model.router_scale),
          .expert_groups = model.expert_groups == 0 ? 1 : model.expert_groups,
          .top_groups = model.expert_groups == 0 ? 1 : model.top_groups,
          .router_bias_rate = static_cast<float>(model.router_bias_rate),
          .router_aux_loss = static_cast<float>(model.router_aux_loss),
          .uneven_split = model.split == GroupSplit::kUneven};
}

DType training_dtype(const CellConfig& cell) {
  return cell.training.param_dtype == ParamDType::kF32 ? DType::kF32 : DType::kBF16;
}

ModelOptions model_options(const CellConfig& cell) {
  LayerConfig config = layer_config(cell.model, cell.training.fp8_attention);
  config.seq = seq_of_rank(cell);
  config.fp8_attention_backward = cell.training.fp8_attention_backward;
  config.fp8_mha = cell.training.fp8_mha;
  config.fp8_dispatch = cell.training.fp8_dispatch;
  return {.layer = cell.model.layer,
          .layers = cell.model.layers,
          .config = config,
          .window_every = cell.model.window_every,
          .dense_layers = cell.model.dense_layers,
          .dense_ffn = dense_width(cell.model),
          .dtype = training_dtype(cell),
          .checkpoint_every = cell.training.checkpoint == Recompute::kNone ? 0 : cell.training.checkpoint_every,
          .kept_products = kept_products(cell.training.checkpoint),
          .eight_bit_weights = cell.training.quantized_weights,
          .fused_quantize = cell.training.fused_quantize,
          .deferred_init = defers_init(cell),
          .cache_weights = cell.training.cache_weights,
          .initial_history_length = cell.training.initial_history_length,
          .initial_in = initial_in(cell.training.masters_from),
          .first_layers_plain = cell.training.first_layers_bf16,
          .last_layers_plain = cell.training.last_layers_bf16,
          .frozen_layers = cell.training.frozen_layers,
          .vocabulary = cell.model.vocabulary,
          .tied_head = cell.model.head == HeadWeight::kTied,
          .learned_positions = learns_positions(cell.model),
          .init_deviation = static_cast<float>(cell.model.init_std),
          .scaled_residuals = cell.model.scaled_residuals};
}

ShardingOptions sharding_options(const CellConfig& cell) {
  ShardingOptions options{.reshard_after_forward = cell.reshard_after_forward, .gather_ahead = cell.gather_ahead};
  if (cell.reduce_dtype) options.reduce_dtype = *cell.reduce_dtype == ReduceDType::kF32 ? DType::kF32 : DType::kBF16;
  return options;
}

LearningRate learning_rate(const TrainingConfig& training) {
  return {.rate = training.learning_rate,
          .warmup_steps = training.warmup_steps,
          .cosine = training.learning_rate_schedule == RateSchedule::kCosine,
          .final_rate = training.final_learning_rate,
          .decay_steps = training.decay_steps == 0 ? training.steps : training.decay_steps};
}

AdamOptions adam_options(const TrainingConfig& training, ProcessGroup* shards) {
  return {.learning_rate = learning_rate(training).at(0),
          .beta1 = training.beta1,
          .beta2 = training.beta2,
          .weight_decay = training.weight_decay,
          .decoupled_decay = training.decoupled_decay,
          .decay_only_matrices = training.decay_only_matrices,
          .master = master_weights(training.master_weights),
          .stochastic_rounding = training.weight_rounding == Rounding::kStochastic,
          .seed = training.seed,
          .exp_avg = *parse_dtype(training.moments.text()),
          .exp_avg_sq = *parse_dtype(training.moments.text()),
          .max_grad_norm = training.clip_norm,
          .norm_group = shards};
}

SgdOptions sgd_options(const TrainingConfig& training) {
  return {.learning_rate = learning_rate(training).at(0),
          .weight_decay = training.weight_decay,
          .decay_only_matrices = training.decay_only_matrices};
}

}  // namespace fp8lab
