#include "backend/cuda/attention.h"

#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {

void attention_forward(const AttentionForwardArgs& args, ExecContext& context) {
  attention_general_forward(args, cuda_context(context));
}

void attention_backward(const AttentionBackwardArgs& args, ExecContext& context) {
  attention_general_backward(args, cuda_context(context));
}

}  // namespace fp8lab::cuda
