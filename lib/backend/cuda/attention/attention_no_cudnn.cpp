#include "backend/cuda/attention/attention.h"

namespace fp8lab::cuda {

const std::string& cudnn_unavailable_reason() {
  static const std::string reason =
      "built without cuDNN: configure with the Python package nvidia-cudnn-frontend installed, or "
      "FP8LAB_CUDNN_FRONTEND_INCLUDE";
  return reason;
}

bool attention_cudnn_forward(const AttentionForwardArgs&, CudaContext&) { return false; }
bool attention_cudnn_backward(const AttentionBackwardArgs&, CudaContext&) { return false; }
bool attention_cudnn_float8_forward(const AttentionForwardArgs&, CudaContext&) { return false; }
bool attention_cudnn_float8_backward(const AttentionBackwardArgs&, CudaContext&) { return false; }

}  // namespace fp8lab::cuda
