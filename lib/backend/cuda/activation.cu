#include "backend/cuda/device/map.cuh"
#include "backend/cuda/kernels.h"
#include "core/elementary.h"

namespace fp8lab::cuda {
namespace {

struct Gelu {
  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[0][j] * gelu_gate(in[0][j]);
  }
};

struct GeluGradient {
  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[1][j] * gelu_slope(in[0][j]);
  }
};

struct Swiglu {
  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = swiglu(in[0][j], in[1][j]);
  }
};

struct GatedGradient {
  template <int Width>
  __device__ void operator()(const float (&in)[3][Width], float (&out)[2][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      const SwigluGradient grad = swiglu_gradient(in[0][j], in[1][j], in[2][j]);
      out[0][j] = grad.gate;
      out[1][j] = grad.up;
    }
  }
};

/// Columns first ... first + cols - 1.
MatrixView columns(MatrixView whole, std::int64_t first, std::int64_t cols) {
  whole.data += first * whole.col_stride * static_cast<std::int64_t>(size_bytes(whole.dtype));
  whole.cols = cols;
  return whole;
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, ExecContext& context) {
  CudaContext& card = cuda_context(context);
  const std::int64_t cols = args.y.cols;
  switch (args.kind) {
    case ActivationKind::kGelu: map<1, 1>({args.x}, {args.y}, Gelu{}, card); break;
    case ActivationKind::kSwiglu:
      map<2, 1>({columns(args.x, 0, cols), columns(args.x, cols, cols)}, {args.y}, Swiglu{}, card);
      break;
  }
  measure(args.y, args.amax, context);
}

void activation_backward(const ActivationBackwardArgs& args, ExecContext& context) {
  CudaContext& card = cuda_context(context);
  const std::int64_t cols = args.grad_y.cols;
  switch (args.kind) {
    case ActivationKind::kGelu: map<2, 1>({args.x, args.grad_y}, {args.grad_x}, GeluGradient{}, card); break;
    case ActivationKind::kSwiglu:
      map<3, 2>({columns(args.x, 0, cols), columns(args.x, cols, cols), args.grad_y},
                {columns(args.grad_x, 0, cols), columns(args.grad_x, cols, cols)}, GatedGradient{}, card);
      break;
  }
  measure(args.grad_x, args.amax, context);
}

}  // namespace fp8lab::cuda
