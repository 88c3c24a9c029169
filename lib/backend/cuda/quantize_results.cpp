#include "backend/cuda/quantize_results.h"

#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {

MatrixView UnstoredResults::place(const MatrixView& result) {
  const std::size_t bytes = static_cast<std::size_t>(result.numel()) * size_bytes(result.dtype);
  if (bytes > bytes_) {
    card_.synchronize();
    memory_.reset();
    bytes_ = 0;
    memory_ = allocate_device(bytes);
    bytes_ = bytes;
  }
  MatrixView placed = result;
  placed.data = memory_.get();
  placed.row_stride = placed.cols;
  placed.col_stride = 1;
  return placed;
}

void norm_quantize(const NormQuantizeArgs& args, ExecContext& context) {
  NormForwardArgs norm = args.norm;
  QuantizeArgs cast = args.cast;
  norm.y = cast.in = cuda_context(context).kept<UnstoredResults>().place(norm.y);
  norm_forward(norm, context);
  quantize(cast, context);
}

void activation_quantize(const ActivationQuantizeArgs& args, ExecContext& context) {
  ActivationForwardArgs activation = args.activation;
  QuantizeArgs cast = args.cast;
  activation.y = cast.in = cuda_context(context).kept<UnstoredResults>().place(activation.y);
  activation_forward(activation, context);
  quantize(cast, context);
}

}  // namespace fp8lab::cuda
