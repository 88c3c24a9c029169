#include "backend/cuda/attention/attention.h"

#include <fmt/core.h>

#include <initializer_list>

#include "backend/cuda/attention/attention_choice.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

bool aligned(std::initializer_list<const MatrixView*> views) {
  for (const MatrixView* view : views) {
    const auto bytes = static_cast<std::int64_t>(size_bytes(view->dtype));
    if (view->col_stride != 1 || view->row_stride * bytes % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(view->data) % 16 != 0)
      return false;
  }
  return true;
}

/// Properties of the GPU that the choice of an algorithm depends on.
struct Facts {
  bool hopper;
  bool cudnn;

  explicit Facts(CudaContext& context) : cudnn(cudnn_unavailable_reason().empty()) {
    int major = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.ordinal()),
               "cudaDeviceGetAttribute");
    hopper = major == 9;
  }
};

AttentionCall describe(const AttentionForwardArgs& args, CudaContext& context) {
  const Facts& facts = context.kept<Facts>();
  return {.shape = args.shape,
          .operands = args.q.values.dtype,
          .out = args.o.dtype,
          .casts = args.s.scale != nullptr,
          .sinks = args.sinks.data != nullptr,
          .result_cast_known = args.o_cast.scale != nullptr,
          .aligned = aligned({&args.q.values, &args.k.values, &args.v.values, &args.o}),
          .deterministic = context.deterministic(),
          .hopper = facts.hopper,
          .cudnn = facts.cudnn};
}

AttentionCall describe(const AttentionBackwardArgs& args, CudaContext& context) {
  const Facts& facts = context.kept<Facts>();
  return {.shape = args.shape,
          .operands = args.q.values.dtype,
          .o = args.o.values.dtype,
          .grad_o = args.grad_o.values.dtype,
          .out = args.grad_q.dtype,
          .casts = args.s.scale != nullptr && args.grad_p.scale != nullptr,
          .sinks = args.sinks.data != nullptr,
          .result_cast_known = args.grad_cast.scale != nullptr,
          .aligned = aligned({&args.q.values, &args.k.values, &args.v.values, &args.o.values, &args.grad_o.values,
                              &args.grad_q, &args.grad_k, &args.grad_v}),
          .deterministic = context.deterministic(),
          .hopper = facts.hopper,
          .cudnn = facts.cudnn};
}

constexpr int kAlgorithms = 4;

/// Which algorithms have been recorded in the context's notes, so that later launches format no text.
struct Recorded {
  explicit Recorded(CudaContext&) {}
  bool forward[kAlgorithms] = {};
  bool backward[kAlgorithms] = {};
};

void record(bool& recorded, const char* direction, AttentionAlgorithm algorithm, CudaContext& context) {
  if (recorded) return;
  recorded = true;
  context.note(fmt::format("attention {}: {}", direction, name(algorithm)));
}

bool run(AttentionAlgorithm algorithm, const AttentionForwardArgs& args, CudaContext& context) {
  switch (algorithm) {
    case AttentionAlgorithm::kCudnn: return attention_cudnn_forward(args, context);
    case AttentionAlgorithm::kCudnnFloat8: return attention_cudnn_float8_forward(args, context);
    case AttentionAlgorithm::kTensor: attention_tensor_forward(args, context); return true;
    case AttentionAlgorithm::kGeneral: attention_general_forward(args, context); return true;
  }
  return false;
}

bool run(AttentionAlgorithm algorithm, const AttentionBackwardArgs& args, CudaContext& context) {
  switch (algorithm) {
    case AttentionAlgorithm::kCudnn: return attention_cudnn_backward(args, context);
    case AttentionAlgorithm::kCudnnFloat8: return attention_cudnn_float8_backward(args, context);
    case AttentionAlgorithm::kTensor: attention_tensor_backward(args, context); return true;
    case AttentionAlgorithm::kGeneral: attention_general_backward(args, context); return true;
  }
  return false;
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  AttentionCall call = describe(args, gpu);
  AttentionAlgorithm algorithm = choose_forward(call);
  if (!run(algorithm, args, gpu)) {
    call.cudnn = false;  // cuDNN has no plan for this call
    algorithm = choose_forward(call);
    run(algorithm, args, gpu);
  }
  record(gpu.kept<Recorded>().forward[static_cast<int>(algorithm)], "forward", algorithm, gpu);
}

void attention_backward(const AttentionBackwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  AttentionCall call = describe(args, gpu);
  AttentionAlgorithm algorithm = choose_backward(call);
  if (!run(algorithm, args, gpu)) {
    call.cudnn = false;
    algorithm = choose_backward(call);
    run(algorithm, args, gpu);
  }
  record(gpu.kept<Recorded>().backward[static_cast<int>(algorithm)], "backward", algorithm, gpu);
}

}  // namespace fp8lab::cuda
