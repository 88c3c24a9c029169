#pragma once

#include <cstdint>
#include <string_view>

#include "backend/kernels.h"

// Which of the GPU's algorithms computes a call of attention: a function of plain facts, so that it can be read, and
// tested without a GPU.
namespace fp8lab::cuda {

enum class AttentionAlgorithm {
  kGeneral,      ///< own kernels, FP32 on the CUDA cores
  kTensor,       ///< own kernels, matrix units, 16-bit operands or exactly widened FP8
  kCudnn,        ///< cuDNN in 16 bits
  kCudnnFloat8,  ///< cuDNN in FP8
};
std::string_view name(AttentionAlgorithm algorithm);

struct AttentionCall {
  AttentionShape shape;
  DType operands = DType::kBF16;  ///< type of q, k and v
  DType o = DType::kBF16;         ///< type of o, backward only
  DType grad_o = DType::kBF16;
  DType out = DType::kBF16;        ///< type of the result: o, or the gradients
  bool casts = false;              ///< P is cast to FP8, and in backward dS
  bool sinks = false;              ///< a sink joins the sum of each row
  bool result_cast_known = false;  ///< the scale with which O, or the gradients, will be cast next is given
  bool aligned = false;            ///< rows and pointers of all operands and results start at multiples of 16 bytes
  bool deterministic = true;       ///< the same bits on every run
  bool hopper = false;             ///< the GPU has the matrix units that the own kernels are written for
  bool cudnn = false;              ///< libcudnn can be loaded
};

/// The least softmax_scale that the own matrix-unit kernels accept. In backward their sums of Q K^T start at lse
/// divided by the logits' factor, and that quotient must be finite.
inline constexpr float kLeastSoftmaxScale = 0x1p-100f;

AttentionAlgorithm choose_forward(const AttentionCall& call);
/// cuDNN only if bits may differ between runs: its deterministic backward stores dP of every head in 16 bits, S x S.
AttentionAlgorithm choose_backward(const AttentionCall& call);

}  // namespace fp8lab::cuda
