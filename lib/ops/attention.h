#pragma once

#include "backend/device.h"

// Fused attention: no S x S matrix exists at any time. Definitions of P, dP and the quantized roles: backend/kernels.h.
namespace fp8lab {

struct AttentionOutputs {
  Tensor o;    ///< [seq * batch, heads * head_dim]
  Tensor lse;  ///< f32 [batch * heads, seq]
  /// O is what its eight bits say, and o_cast.amax, where given, has been raised to the amax of O before them: whoever
  /// casts O raises it no more. Otherwise O is as computed, and its amax still to be recorded.
  bool o_measured = false;
};

struct AttentionInputs {
  AttentionShape shape;
  OperandView q;  ///< [seq * batch, heads * head_dim]; f32, bf16 (any row stride), or FP8 per tensor
  OperandView k;  ///< [seq * batch, kv_heads * head_dim]
  OperandView v;
  AttentionRole s;  ///< P in FP8 where its scale is given
  /// How O is cast next, where its scale is known: O may then come as what its eight bits say. Absent otherwise.
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
  /// How the gradients are cast next, all three under one scale, where it is known: they may then come as what their
  /// eight bits say.
  AttentionRole grad_cast = {};
  /// Where the gradients go, each with its forward counterpart's shape; columns of one packed tensor will do.
  AttentionGradients out;
};
/// Whether the gradients came as what their eight bits say, with grad_cast.amax raised: AttentionOutputs::o_measured of
/// all three.
bool attention_backward(Device& device, const AttentionBackwardInputs& inputs);

}  // namespace fp8lab
