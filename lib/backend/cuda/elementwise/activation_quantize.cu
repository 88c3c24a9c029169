#include "backend/cuda/device/row_map.cuh"
#include "backend/cuda/elementwise/device/activation_ops.cuh"
#include "backend/cuda/quantize/device/quantized_rows.cuh"

namespace fp8lab::cuda {
namespace {

template <int Inputs, class Op>
void launch(const std::array<MatrixView, Inputs>& inputs, const Op& op, std::int64_t block_cols, const RowCast& cast,
            CudaContext& context) {
  switch (block_cols) {
    case 0: return map_rows<Inputs, 1>(inputs, op, QuantizedRows<0>(cast), context);
    case 32: return map_rows<Inputs, 1>(inputs, op, QuantizedRows<32>(cast), context);
    default: return map_rows<Inputs, 1>(inputs, op, QuantizedRows<128>(cast), context);
  }
}

template <int Inputs, class Op>
bool quantize_rows(const std::array<MatrixView, Inputs>& inputs, const Op& op, const QuantizeArgs& args,
                   CudaContext& context) {
  if (!maps_rows<Inputs>(inputs)) return false;
  const RowCast cast = begin_row_cast(args, context);
  launch<Inputs>(inputs, op, args.format.block_cols, cast, context);
  end_row_cast(args, cast, context);
  return true;
}

template <class Function>
bool quantize_gated(const MatrixView& x, const Function& function, const QuantizeArgs& args, CudaContext& context) {
  const std::int64_t cols = args.in.cols;
  return quantize_rows<2>({x.columns(0, cols), x.columns(cols, cols)}, Gated<Function>{function}, args, context);
}

}  // namespace

bool activation_quantize_rows(const ActivationQuantizeArgs& args, CudaContext& context) {
  const MatrixView& x = args.activation.x;
  switch (args.activation.kind) {
    case ActivationKind::kGelu: return quantize_rows<1>({x}, Gelu{}, args.cast, context);
    case ActivationKind::kSwiglu:
      return args.activation.limit > 0.0f ? quantize_gated(x, ClampedSwiglu{args.activation.limit}, args.cast, context)
                                          : quantize_gated(x, Swiglu{}, args.cast, context);
    case ActivationKind::kGeglu: return quantize_gated(x, Geglu{}, args.cast, context);
  }
  return false;
}

}  // namespace fp8lab::cuda
