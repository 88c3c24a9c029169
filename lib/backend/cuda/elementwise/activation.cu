#include "backend/cuda/device/map.cuh"
#include "backend/cuda/device/row_map.cuh"
#include "backend/cuda/elementwise/device/activation_ops.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/device/measured_rows.cuh"

namespace fp8lab::cuda {
namespace {

/// Runs the row kernel, which computes the amax while it stores; returns false if that kernel does not accept these
/// matrices.
template <int Inputs, int Outputs, class Op>
bool measured(const std::array<MatrixView, Inputs>& inputs, const MatrixView& out, float* amax, const Op& op,
              CudaContext& context) {
  if (amax == nullptr || !maps_rows<Inputs>(inputs) || out.dtype != DType::kBF16 || !holds_runs(out)) return false;
  map_rows<Inputs, Outputs>(inputs, op, MeasuredRows(elements(out), FreshAmax(amax, context)), context);
  return true;
}

/// Applies `op` to runs of `inputs`. Its results are columns of `out`, side by side; their amax is computed if `amax`
/// is not null.
template <int Inputs, int Outputs, class Op>
void activate(const std::array<MatrixView, Inputs>& inputs, const MatrixView& out, float* amax, const Op& op,
              ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  if (measured<Inputs, Outputs>(inputs, out, amax, op, gpu)) return;
  std::array<MatrixView, Outputs> outputs;
  const std::int64_t cols = out.cols / Outputs;
  for (int k = 0; k < Outputs; ++k) outputs[static_cast<std::size_t>(k)] = out.columns(k * cols, cols);
  map<Inputs, Outputs>(inputs, outputs, op, gpu);
  measure(out, amax, context);
}

template <class Function>
void gate_forward(const ActivationForwardArgs& args, const Function& function, ExecContext& context) {
  const std::int64_t cols = args.y.cols;
  activate<2, 1>({args.x.columns(0, cols), args.x.columns(cols, cols)}, args.y, args.amax, Gated<Function>{function},
                 context);
}
template <class Function>
void gate_backward(const ActivationBackwardArgs& args, const Function& function, ExecContext& context) {
  const std::int64_t cols = args.grad_y.cols;
  activate<3, 2>({args.x.columns(0, cols), args.x.columns(cols, cols), args.grad_y}, args.grad_x, args.amax,
                 GatedBackward<Function>{function}, context);
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, ExecContext& context) {
  switch (args.kind) {
    case ActivationKind::kGelu: return activate<1, 1>({args.x}, args.y, args.amax, Gelu{}, context);
    case ActivationKind::kSwiglu:
      return args.limit > 0.0f ? gate_forward(args, ClampedSwiglu{args.limit}, context)
                               : gate_forward(args, Swiglu{}, context);
    case ActivationKind::kGeglu: return gate_forward(args, Geglu{}, context);
  }
}

void activation_backward(const ActivationBackwardArgs& args, ExecContext& context) {
  switch (args.kind) {
    case ActivationKind::kGelu:
      return activate<2, 1>({args.x, args.grad_y}, args.grad_x, args.amax, GeluGradient{}, context);
    case ActivationKind::kSwiglu:
      return args.limit > 0.0f ? gate_backward(args, ClampedSwiglu{args.limit}, context)
                               : gate_backward(args, Swiglu{}, context);
    case ActivationKind::kGeglu: return gate_backward(args, Geglu{}, context);
  }
}

}  // namespace fp8lab::cuda
