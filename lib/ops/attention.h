#pragma once

#include "backend/device.h"

// Fused attention: no S x S matrix is stored at any time. Definitions of P, dP and the quantized roles:
// backend/kernels.h.
namespace fp8lab {

struct AttentionOutputs {
  Tensor o;    ///< [seq * batch, heads * columns of a value]
  Tensor lse;  ///< f32 [batch * heads, seq]
  /// True if O holds the values of its eight bits and o_cast.amax, if given, has been raised to the amax of O before
  /// the cast: whoever casts O must not raise it again. False if O is as computed, and its amax is still to be
  /// recorded.
  bool o_measured = false;
};

struct AttentionInputs {
  AttentionShape shape;
  OperandView q;    ///< [seq * batch, heads * head_dim]; f32, bf16 (any row stride), or FP8 per tensor
  OperandView k;    ///< [seq * batch, kv_heads * head_dim]
  OperandView v;    ///< [seq * batch, kv_heads * columns of a value]
  AttentionRole s;  ///< P is cast to FP8 if its scale is given
  Tensor sinks{};   ///< [heads], or absent: AttentionForwardArgs::sinks
  /// How O will be cast next, if its scale is known: O may then come as the values of its eight bits. Absent otherwise.
  AttentionRole o_cast = {};
  DType out_dtype = DType::kBF16;
  HolderId o_holder = 0;
  HolderId lse_holder = 0;
};
AttentionOutputs attention_forward(Device& device, const AttentionInputs& inputs);

struct AttentionGradients {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor sinks{};  ///< [heads]; present if forward had sinks
};

struct AttentionBackwardInputs {
  AttentionShape shape;
  OperandView q;
  OperandView k;
  OperandView v;
  OperandView o;
  OperandView grad_o;
  Tensor lse;
  AttentionRole s;
  AttentionRole grad_p;
  Tensor sinks{};  ///< forward's
  /// How the gradients will be cast next, all three under one scale, if it is known: they may then come as the values
  /// of their eight bits.
  AttentionRole grad_cast = {};
  /// Destinations of the gradients, each with the shape of its forward counterpart; they may be columns of one packed
  /// tensor.
  AttentionGradients out;
};
/// True if the gradients hold the values of their eight bits and grad_cast.amax has been raised:
/// AttentionOutputs::o_measured for all three.
bool attention_backward(Device& device, const AttentionBackwardInputs& inputs);

/// Sizes of multi-head latent attention. `head_dim`: columns of a key that are not rotated.
struct LatentHeads {
  std::int64_t batch = 1, heads = 1, head_dim = 0, rope_dim = 0, value_dim = 0;
};

/// What the products make, or the gradients of it: LatentHeadsArgs in backend/latent_kernels.h.
struct LatentHeadParts {
  Tensor q;       ///< [tokens, heads * (head_dim + rope_dim)]
  Tensor kv;      ///< [tokens, heads * (head_dim + value_dim)]
  Tensor k_rope;  ///< [tokens, rope_dim]
};

/// Q, K and V of attention, packed: all heads of Q, then of K, then of V.
Tensor latent_heads(Device& device, const LatentHeads& heads, const LatentHeadParts& parts, HolderId holder);
/// The gradients of the parts, in the type of `grad`.
LatentHeadParts latent_heads_backward(Device& device, const LatentHeads& heads, const Tensor& grad, HolderId holder);

}  // namespace fp8lab
