#include "core/elementary.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kX, kUp, kGradY, kOut, kOutUp };

// The tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), is x * sigmoid(2 u): the same function
// without the cancellation of 1 + tanh(u) where x is negative.
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

/// Beyond 12 the sigmoid is exactly 0 or 1, and the cube could overflow.
inline float saturated(float x) {
  const float bounded = x < -12.0f ? -12.0f : x;
  return bounded > 12.0f ? 12.0f : bounded;
}
inline float gelu_gate(float x) {
  const float t = saturated(x);
  return sigmoid(kTwiceSqrtTwoOverPi * (t + kCubic * t * t * t));
}
inline float gelu_slope(float x) {
  const float t = saturated(x);
  const float gate = gelu_gate(x);
  return gate + t * gate * (1.0f - gate) * (kTwiceSqrtTwoOverPi * (1.0f + 3.0f * kCubic * t * t));
}

void gelu_forward(MatrixView in, MatrixView out) {
  flatten_if_contiguous(in, out);
  float* x = scratch(kX, kRun);
  for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, x);
    for (std::int64_t j = 0; j < count; ++j) x[j] *= gelu_gate(x[j]);
    store(x, count, out, row, col);
  });
}

void gelu_backward(MatrixView grad_out, MatrixView in, MatrixView grad_in) {
  flatten_if_contiguous(grad_out, in, grad_in);
  float* x = scratch(kX, kRun);
  float* grad_y = scratch(kGradY, kRun);
  for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, x);
    load(grad_out, row, col, count, grad_y);
    for (std::int64_t j = 0; j < count; ++j) grad_y[j] *= gelu_slope(x[j]);
    store(grad_y, count, grad_in, row, col);
  });
}

void swiglu_forward(const MatrixView& in, const MatrixView& out) {
  float* gate = scratch(kX, kRun);
  float* up = scratch(kUp, kRun);
  for_each_run(out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, gate);
    load(in, row, out.cols + col, count, up);
    for (std::int64_t j = 0; j < count; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    store(up, count, out, row, col);
  });
}

void swiglu_backward(const MatrixView& grad_out, const MatrixView& in, const MatrixView& grad_in) {
  float* gate = scratch(kX, kRun);
  float* up = scratch(kUp, kRun);
  float* grad_y = scratch(kGradY, kRun);
  float* grad_gate = scratch(kOut, kRun);
  float* grad_up = scratch(kOutUp, kRun);
  for_each_run(grad_out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, gate);
    load(in, row, grad_out.cols + col, count, up);
    load(grad_out, row, col, count, grad_y);
    for (std::int64_t j = 0; j < count; ++j) {
      const float s = sigmoid(gate[j]);
      grad_up[j] = grad_y[j] * (gate[j] * s);
      grad_gate[j] = grad_y[j] * up[j] * (s + gate[j] * s * (1.0f - s));
    }
    store(grad_gate, count, grad_in, row, col);
    store(grad_up, count, grad_in, row, grad_out.cols + col);
  });
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, ExecContext&) {
  switch (args.kind) {
    case ActivationKind::kGelu: return gelu_forward(args.x, args.y);
    case ActivationKind::kSwiglu: return swiglu_forward(args.x, args.y);
  }
}

void activation_backward(const ActivationBackwardArgs& args, ExecContext&) {
  switch (args.kind) {
    case ActivationKind::kGelu: return gelu_backward(args.grad_y, args.x, args.grad_x);
    case ActivationKind::kSwiglu: return swiglu_backward(args.grad_y, args.x, args.grad_x);
  }
}

}  // namespace fp8lab::cpu
