#include "backend/cuda/attention/attention_choice.h"

#include "core/float8_format.h"
#include "core/shape.h"

namespace fp8lab::cuda {
namespace {

// Shorter sequences take less time than cuDNN needs to make its plan, once for each shape.
constexpr std::int64_t kShortestForCudnn = 512;

bool sixteen_bits(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Kernels count the keys of a window in 32 bits.
bool usual_window(const AttentionShape& shape) { return shape.window == 0 || shape.window < shape.seq; }

bool suits_cudnn(const AttentionCall& call) {
  const AttentionShape& shape = call.shape;
  return call.cudnn && call.aligned && usual_window(shape) && shape.dropout == 0.0f && shape.seq >= kShortestForCudnn &&
         shape.head_dim % 16 == 0 && shape.columns_of_value() % 16 == 0;
}

/// FP8 attention is left to cuDNN only with heads of one width.
bool suits_cudnn_float8(const AttentionCall& call) {
  return call.operands == DType::kE4M3 && call.casts && call.result_cast_known && sixteen_bits(call.out) &&
         !call.sinks && call.shape.columns_of_value() == call.shape.head_dim;
}

bool quantizes(const AttentionCall& call) {
  return call.casts || is_float8(call.operands) || is_float8(call.o) || is_float8(call.grad_o);
}

bool suits_tensor(const AttentionCall& call) {
  const AttentionShape& shape = call.shape;
  const auto taken = [](DType dtype) { return dtype == DType::kBF16 || is_float8(dtype); };
  return call.hopper && call.aligned && usual_window(shape) && (shape.head_dim == 64 || shape.head_dim == 128) &&
         shape.columns_of_value() == shape.head_dim && !(call.sinks && quantizes(call)) &&
         shape.softmax_scale >= kLeastSoftmaxScale && taken(call.operands) && taken(call.grad_o);
}

}  // namespace

std::string_view name(AttentionAlgorithm algorithm) {
  switch (algorithm) {
    case AttentionAlgorithm::kGeneral: return "own FP32 kernel";
    case AttentionAlgorithm::kTensor: return "own matrix-unit kernel";
    case AttentionAlgorithm::kCudnn: return "cuDNN in 16 bits";
    case AttentionAlgorithm::kCudnnFloat8: return "cuDNN in FP8";
  }
  return "?";
}

AttentionAlgorithm choose_forward(const AttentionCall& call) {
  if (suits_cudnn(call)) {
    if (sixteen_bits(call.operands) && call.out == call.operands && call.shape.head_dim <= 256)
      return AttentionAlgorithm::kCudnn;
    if (suits_cudnn_float8(call) && call.shape.head_dim <= 128) return AttentionAlgorithm::kCudnnFloat8;
  }
  return suits_tensor(call) ? AttentionAlgorithm::kTensor : AttentionAlgorithm::kGeneral;
}

// On Hopper cuDNN's FP8 backward returns dQ, dK and dV in eight bits (16 bits come with Blackwell), so it is used only
// if they are cast to eight bits anyway. Its blocks add to dQ in the order in which they finish, so it is not used
// if the context is deterministic.
AttentionAlgorithm choose_backward(const AttentionCall& call) {
  if (!call.deterministic && suits_cudnn(call)) {
    const bool one_type = call.grad_o == call.operands && call.o == call.operands && call.out == call.operands;
    if (sixteen_bits(call.operands) && one_type && !call.sinks && call.shape.head_dim <= 192 &&
        call.shape.columns_of_value() <= 128)
      return AttentionAlgorithm::kCudnn;
    const bool eight_bits = call.o == DType::kE4M3 && call.grad_o == DType::kE5M2;
    // The own kernels compute gradients of windows faster.
    if (suits_cudnn_float8(call) && eight_bits && call.shape.window == 0 && call.shape.head_dim == 128)
      return AttentionAlgorithm::kCudnnFloat8;
  }
  return suits_tensor(call) ? AttentionAlgorithm::kTensor : AttentionAlgorithm::kGeneral;
}

}  // namespace fp8lab::cuda
