#include "backend/cpu/kernels.h"
#include "backend/cpu/quantize/quantize_source.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"
#include "core/elementary.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kX, kUp, kGradY, kOut, kOutUp };

void gelu_forward(MatrixView in, MatrixView out) {
  flatten_if_contiguous(in, out);
  float* x = scratch(kX, kRun);
  for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, x);
    vectorized([=] {
      for (std::int64_t j = 0; j < count; ++j) x[j] *= gelu_gate(x[j]);
    });
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
    vectorized([=] {
      for (std::int64_t j = 0; j < count; ++j) grad_y[j] *= gelu_slope(x[j]);
    });
    store(grad_y, count, grad_in, row, col);
  });
}

template <class Gated>
void gated_forward(const MatrixView& in, const MatrixView& out, Gated gated = {}) {
  float* gate = scratch(kX, kRun);
  float* up = scratch(kUp, kRun);
  for_each_run(out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, gate);
    load(in, row, out.cols + col, count, up);
    vectorized([=] {
      for (std::int64_t j = 0; j < count; ++j) up[j] = gated.value(gate[j], up[j]);
    });
    store(up, count, out, row, col);
  });
}

template <class Gated>
void gated_backward(const MatrixView& grad_out, const MatrixView& in, const MatrixView& grad_in, Gated gated = {}) {
  float* gate = scratch(kX, kRun);
  float* up = scratch(kUp, kRun);
  float* grad_y = scratch(kGradY, kRun);
  float* grad_gate = scratch(kOut, kRun);
  float* grad_up = scratch(kOutUp, kRun);
  for_each_run(grad_out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, gate);
    load(in, row, grad_out.cols + col, count, up);
    load(grad_out, row, col, count, grad_y);
    vectorized([=] {
      for (std::int64_t j = 0; j < count; ++j) {
        const GatedGradient grad = gated.gradient(gate[j], up[j], grad_y[j]);
        grad_gate[j] = grad.gate;
        grad_up[j] = grad.up;
      }
    });
    store(grad_gate, count, grad_in, row, col);
    store(grad_up, count, grad_in, row, grad_out.cols + col);
  });
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, ExecContext&) {
  switch (args.kind) {
    case ActivationKind::kGelu: gelu_forward(args.x, args.y); break;
    case ActivationKind::kSwiglu:
      if (args.limit > 0.0f)
        gated_forward(args.x, args.y, ClampedSwiglu{args.limit});
      else
        gated_forward<Swiglu>(args.x, args.y);
      break;
    case ActivationKind::kGeglu: gated_forward<Geglu>(args.x, args.y); break;
  }
  measure(args.y, args.amax);
}

void activation_backward(const ActivationBackwardArgs& args, ExecContext&) {
  switch (args.kind) {
    case ActivationKind::kGelu: gelu_backward(args.grad_y, args.x, args.grad_x); break;
    case ActivationKind::kSwiglu:
      if (args.limit > 0.0f)
        gated_backward(args.grad_y, args.x, args.grad_x, ClampedSwiglu{args.limit});
      else
        gated_backward<Swiglu>(args.grad_y, args.x, args.grad_x);
      break;
    case ActivationKind::kGeglu: gated_backward<Geglu>(args.grad_y, args.x, args.grad_x); break;
  }
  measure(args.grad_x, args.amax);
}

}  // namespace fp8lab::cpu
