#pragma once

#include <cstdint>
#include <string_view>

#include "backend/kernels.h"

// Which of the GPU's paths computes a call of attention: a table of plain facts, so that it can be read, and tested
// without a GPU.
namespace fp8lab::cuda {

enum class AttentionAlgorithm {
  kGeneral,      ///< own kernels, FP32 on the ordinary units
  kTensor,       ///< own kernels, matrix units, 16-bit operands or exactly widened FP8
  kCudnn,        ///< cuDNN in 16 bits
  kCudnnFloat8,  ///< cuDNN in FP8
};
std::string_view name(AttentionAlgorithm way);

struct AttentionCall {
  AttentionShape shape;
  DType operands = DType::kBF16;  ///< of q, k and v
  DType o = DType::kBF16;         ///< backward's
  DType grad_o = DType::kBF16;
  DType out = DType::kBF16;        ///< of o, or of the gradients
  bool casts = false;              ///< P is cast to FP8, and in backward dS
  bool result_cast_known = false;  ///< the scale is given by which O, or the gradients, will be cast
  bool aligned = false;            ///< rows and pointers of all operands and results start at multiples of 16 bytes
  bool deterministic = true;       ///< the same bits on every run
  bool hopper = false;             ///< the GPU has the matrix units that the own kernels are written for
  bool cudnn = false;              ///< the library is there
};

/// The least softmax_scale that the own matrix-unit kernels take: backward's sums of Q K^T start at lse over their
/// factor, which must be a number.
inline constexpr float kLeastSoftmaxScale = 0x1p-100f;

AttentionAlgorithm choose_forward(const AttentionCall& call);
AttentionAlgorithm choose_backward(const AttentionCall& call);

/// Bytes that a deterministic backward of cuDNN holds beside its operands: dP of every head in 16 bits, seq padded
/// to 64. What is S x S is not for training, so choose_backward() takes cuDNN only where bits may differ between runs.
std::int64_t cudnn_backward_workspace(const AttentionShape& shape);

}  // namespace fp8lab::cuda
