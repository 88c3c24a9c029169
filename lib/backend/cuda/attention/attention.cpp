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

/// What the choice needs to know of a card.
struct Facts {
  bool hopper;
  bool cudnn;

  explicit Facts(CudaContext& card) : cudnn(cudnn_unavailable_reason().empty()) {
    int major = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card.ordinal()),
               "cudaDeviceGetAttribute");
    hopper = major == 9;
  }
};

AttentionCall describe(const AttentionForwardArgs& args, CudaContext& card) {
  const Facts& facts = card.kept<Facts>();
  return {.shape = args.shape,
          .operands = args.q.values.dtype,
          .out = args.o.dtype,
          .casts = args.s.scale != nullptr,
          .result_cast_known = args.o_cast.scale != nullptr,
          .aligned = aligned({&args.q.values, &args.k.values, &args.v.values, &args.o}),
          .deterministic = card.deterministic(),
          .hopper = facts.hopper,
          .cudnn = facts.cudnn};
}

AttentionCall describe(const AttentionBackwardArgs& args, CudaContext& card) {
  const Facts& facts = card.kept<Facts>();
  return {.shape = args.shape,
          .operands = args.q.values.dtype,
          .o = args.o.values.dtype,
          .grad_o = args.grad_o.values.dtype,
          .out = args.grad_q.dtype,
          .casts = args.s.scale != nullptr && args.grad_p.scale != nullptr,
          .result_cast_known = args.grad_cast.scale != nullptr,
          .aligned = aligned({&args.q.values, &args.k.values, &args.v.values, &args.o.values, &args.grad_o.values,
                              &args.grad_q, &args.grad_k, &args.grad_v}),
          .deterministic = card.deterministic(),
          .hopper = facts.hopper,
          .cudnn = facts.cudnn};
}

constexpr int kWays = 4;

/// Which ways were noted already, so that a launch costs no text.
struct Noted {
  explicit Noted(CudaContext&) {}
  bool forward[kWays] = {};
  bool backward[kWays] = {};
};

void note(bool& noted, const char* direction, AttentionWay way, CudaContext& card) {
  if (noted) return;
  noted = true;
  card.note(fmt::format("attention {}: {}", direction, name(way)));
}

bool run(AttentionWay way, const AttentionForwardArgs& args, CudaContext& card) {
  switch (way) {
    case AttentionWay::kCudnn: return attention_cudnn_forward(args, card);
    case AttentionWay::kCudnnFloat8: return attention_cudnn_float8_forward(args, card);
    case AttentionWay::kTensor: attention_tensor_forward(args, card); return true;
    case AttentionWay::kGeneral: attention_general_forward(args, card); return true;
  }
  return false;
}

bool run(AttentionWay way, const AttentionBackwardArgs& args, CudaContext& card) {
  switch (way) {
    case AttentionWay::kCudnn: return attention_cudnn_backward(args, card);
    case AttentionWay::kCudnnFloat8: return attention_cudnn_float8_backward(args, card);
    case AttentionWay::kTensor: attention_tensor_backward(args, card); return true;
    case AttentionWay::kGeneral: attention_general_backward(args, card); return true;
  }
  return false;
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, ExecContext& context) {
  CudaContext& card = cuda_context(context);
  AttentionCall call = describe(args, card);
  AttentionWay way = choose_forward(call);
  if (!run(way, args, card)) {
    call.cudnn = false;  // it has no plan for this
    way = choose_forward(call);
    run(way, args, card);
  }
  note(card.kept<Noted>().forward[static_cast<int>(way)], "forward", way, card);
}

void attention_backward(const AttentionBackwardArgs& args, ExecContext& context) {
  CudaContext& card = cuda_context(context);
  AttentionCall call = describe(args, card);
  AttentionWay way = choose_backward(call);
  if (!run(way, args, card)) {
    call.cudnn = false;
    way = choose_backward(call);
    run(way, args, card);
  }
  note(card.kept<Noted>().backward[static_cast<int>(way)], "backward", way, card);
}

}  // namespace fp8lab::cuda
