#include "harness/eager/numbers.h"

#include "harness/cell/sharding_keys.h"

namespace fp8lab::eager {

Numbers::Numbers(const CellConfig& cell, Program of_program, Operators of_operators, Bytes of_ring_rank)
    : program(of_program), operators(of_operators), context_parallel(cell.context_parallel), ring_rank(of_ring_rank) {
  const ModelConfig& model = cell.model;
  const TrainingConfig& training = cell.training;
  attends = model.layer == "transformer_layer";
  gated = model.form != "gpt";
  scales_embeddings = model.form == "gemma";
  bias = model.bias ? *model.bias == Bias::kAll : !gated;
  qkv_bias = bias || model.bias == Bias::kQkv;
  qk_norm = model.qk_norm;
  tied = model.head == HeadWeight::kTied;
  learned_positions = model.positions ? *model.positions == Positions::kLearned : !gated;
  checkpoint_every = training.checkpoint == Recompute::kNone ? 0 : training.checkpoint_every;
  keeps_results = is_selective(training.checkpoint);
  alternates = training.checkpoint == Recompute::kSelectiveAlternate;
  float8 = program != Program::kEngine && training.recipe != "bf16";
  float8_gathers = float8 && training.quantized_weights;
  reshards = cell.reshard_after_forward;
  sharded = fp8lab::is_sharded(cell);
  replicated = is_replicated(cell);
  shards = sharded ? mesh_of(cell).shards : 1;
  replicas = sharded ? mesh_of(cell).replicas : 1;
  seq = model.seq / context_parallel;
  batch = model.batch;
  tokens = seq * batch;
  layers = model.layers;
  hidden = model.hidden;
  heads = model.heads;
  head_dim = head_dim_of(model);
  query = heads * key_dim_of(model);
  has_latents = fp8lab::has_latents(model);
  has_sinks = model.attention_sinks;
  kv = !has_latents && model.kv_heads > 0 ? model.kv_heads * head_dim : query;
  q_rank = model.q_rank;
  kv_rank = model.kv_rank;
  rotated = has_latents ? model.rope_dim : head_dim;
  attended = heads * value_dim_of(model);
  composes_attention = on_host() && attended != query;
  ffn = model.ffn > 0 ? model.ffn : 4 * hidden;
  routes = routes_tokens(model);
  clamps = routes && model.swiglu_limit > 0.0;
  experts = model.experts;
  top_k = model.top_k;
  expert_ffn = mlp_width(model);
  expert_parallel = cell.expert_parallel;
  expert_groups = has_expert_groups(model) ? model.expert_groups : 0;
  top_groups = model.top_groups;
  has_router_biases = fp8lab::has_router_biases(model);
  shared_ffn = model.shared_experts * expert_ffn;
  dense_layers = model.dense_layers;
  vocabulary = model.vocabulary;
  element = training.param_dtype == ParamDType::kF32 ? 4 : 2;
  // torchtitan's MixedPrecisionPolicy: the FP32 parameters are the master weights, layers gather them in BF16.
  const bool mixed = in_titan() && sharded && training.master_weights == Master::kF32;
  stored = mixed ? 4 : element;
  reduced = cell.reduce_dtype ? (*cell.reduce_dtype == ReduceDType::kF32 ? 4 : 2) : stored;
  loss_chunks = training.loss_chunks;
  frozen = training.frozen_layers;
  norm_vectors = !gated && bias ? 2 : 1;
}

}  // namespace fp8lab::eager
