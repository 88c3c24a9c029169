#include <cstddef>
#include <vector>

#include "backend/cpu/kernels.h"

// Operations whose result is quantized without being stored on the device. The result that GPUs keep in registers lies
// in scratch memory of the host here.
namespace fp8lab::cpu {
namespace {

class Unstored {
 public:
  explicit Unstored(const MatrixView& result)
      : bytes_(static_cast<std::size_t>(result.numel()) * size_bytes(result.dtype)), view_(result) {
    view_.data = bytes_.data();
    view_.row_stride = view_.cols;
    view_.col_stride = 1;
  }
  const MatrixView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  MatrixView view_;
};

}  // namespace

void norm_quantize(const NormQuantizeArgs& args, ExecContext& context) {
  const Unstored y(args.norm.y);
  NormForwardArgs norm = args.norm;
  QuantizeArgs cast = args.cast;
  norm.y = cast.in = y.view();
  norm_forward(norm, context);
  quantize(cast, context);
}

void activation_quantize(const ActivationQuantizeArgs& args, ExecContext& context) {
  const Unstored y(args.activation.y);
  ActivationForwardArgs activation = args.activation;
  QuantizeArgs cast = args.cast;
  activation.y = cast.in = y.view();
  activation_forward(activation, context);
  quantize(cast, context);
}

void gemm_quantize(const GemmQuantizeArgs& args, ExecContext& context) {
  const Unstored result(args.product.out);
  GemmArgs product = args.product;
  QuantizeArgs cast = args.cast;
  product.out = cast.in = result.view();
  gemm(product, context);
  quantize(cast, context);
}

}  // namespace fp8lab::cpu
