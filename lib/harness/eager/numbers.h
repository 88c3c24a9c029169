#pragma once

#include "harness/cell/cell.h"
#include "harness/eager/heap.h"

namespace fp8lab::eager {

inline constexpr Bytes kF32 = 4;

/// Which eager program trains the cell.
enum class Program {
  /// The layers of lib/subjects: one product makes Q, K and V and another one both inputs of SwiGLU, each layer makes
  /// its tables of rotary angles, tokens are position-major; FSDP2 has a group for each layer and one for the root.
  kWorker,
  /// The layout of torchtitan and of published models: Q, K, V, gate and up have products of their own, layers share
  /// their rotary table; FSDP2 has groups for the embedding, for each layer, and for the last norm with the head.
  kTorchtitan,
  /// The worker's program with layers and FusedAdam of Transformer Engine (see Engine), in BF16. Embedding, last norm
  /// and
  /// head are PyTorch's.
  kEngine,
};

/// Whose operators run.
enum class Operators {
  /// A CPU's, as TorchDispatchMode sees them: storages without rounding; RMSNorm is composed of FP32 operations.
  kHost,
  /// CUDA's, as TorchDispatchMode sees them: fused norms, flash attention, and no workspaces of kernels.
  kCudaOnShapes,
  /// CUDA's, with what its allocator rounds blocks to and the workspaces of cuBLAS and of flash attention's backward.
  kCuda,
};

/// The sizes of a program. Bytes count one element.
struct Numbers {
  /// `ring_rank`: the place of the rank among those that have its sequences between them.
  Numbers(const CellConfig& cell, Program program, Operators operators, Bytes ring_rank = 0);

  bool in_titan() const { return program == Program::kTorchtitan; }
  bool on_host() const { return operators == Operators::kHost; }
  /// Bytes of an activation of `columns` columns, in the type in which layers compute.
  Bytes rows(Bytes columns) const { return tokens * columns * element; }
  Bytes rows_f32(Bytes columns) const { return tokens * columns * 4; }
  Bytes own_experts() const { return experts / expert_parallel; }
  /// Shards of a parameter: experts are sharded over the ranks that have the same ones.
  Bytes shards_of(bool are_experts) const { return are_experts ? shards / expert_parallel : shards; }

  Program program;
  Operators operators;
  bool attends;  ///< false for layernorm_mlp
  bool gated, scales_embeddings, bias, qkv_bias, qk_norm, tied, learned_positions, reshards, sharded;
  bool has_latents;  ///< queries, keys and values are made from latents
  bool has_sinks;    ///< attention has a learned logit for each head
  bool clamps;       ///< experts have biases and clamped SwiGLU, and their router computes in FP32
  /// SDPA is composed of products: of a CPU's and CUDA's flash kernels none has values of another width than the keys'.
  bool composes_attention;
  bool routes;                        ///< the MLP of layers is a mixture of experts
  bool replicated;                    ///< DistributedDataParallel
  bool float8;                        ///< torchao's Float8Linear computes the products of layers
  bool float8_gathers;                ///< and FSDP2 gathers its weights in eight bits
  Bytes context_parallel, ring_rank;  ///< ranks that have each sequence between them, and which of them this one is
  Bytes tokens, seq, batch, layers, hidden, query, kv, heads, head_dim, ffn, vocabulary;
  Bytes q_rank, kv_rank;  ///< columns of the latents
  Bytes rotated;          ///< columns of a head of queries and keys that are rotated
  Bytes attended;         ///< columns of what attention returns
  Bytes experts, top_k, expert_ffn;
  Bytes expert_parallel;            ///< ranks that have a layer's experts between them
  Bytes expert_groups, top_groups;  ///< 0 groups: a token can have every expert
  bool has_router_biases;           ///< which are added to scores for the choice
  Bytes shared_ffn;                 ///< width of the experts that all tokens have
  Bytes dense_layers;               ///< layers at the start that have an MLP
  Bytes element;                    ///< bytes of activations, and of parameters in the layers
  Bytes stored;   ///< bytes of parameters between layers, and of their gradients between backward and the optimizer
  Bytes reduced;  ///< bytes of gradients while ranks add them up
  Bytes shards, replicas;
  Bytes checkpoint_every;  ///< one of so many layers is recomputed, the last of each group; 0: none
  bool keeps_results;      ///< recomputed layers keep what attention returns, and products
  bool alternates;         ///< but of the products of a layer only the first, the third ...
  Bytes frozen;            ///< layers at the start that take no gradient, and then neither does the embedding
  Bytes loss_chunks;       ///< parts of the tokens whose logits are computed one after the other
  Bytes norm_vectors;      ///< vectors of a norm: a weight, and a bias if it has one
};

}  // namespace fp8lab::eager
