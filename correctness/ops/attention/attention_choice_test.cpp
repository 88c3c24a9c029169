#include "backend/cuda/attention/attention_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/counter_rng.h"
#include "core/float16.h"
#include "core/float8.h"
#include "core/float8_format.h"

// The algorithm that a GPU uses for attention, read from the table only, on any machine; and when an algorithm may
// return O rounded to eight bits.
namespace fp8lab::cuda {
namespace {

/// A call that every algorithm supports.
AttentionCall common_call() {
  AttentionCall call;
  call.shape = {
      .seq = 4096, .batch = 2, .heads = 32, .kv_heads = 8, .head_dim = 128, .causal = true, .softmax_scale = 0.1f};
  call.aligned = call.hopper = call.cudnn = true;
  return call;
}
AttentionCall float8_call() {
  AttentionCall call = common_call();
  call.operands = call.o = DType::kE4M3;
  call.grad_o = DType::kE5M2;
  call.casts = call.result_cast_known = true;
  return call;
}

TEST(AttentionChoice, LongSequencesUseCudnnForForward) {
  EXPECT_EQ(choose_forward(common_call()), AttentionAlgorithm::kCudnn);
  EXPECT_EQ(choose_forward(float8_call()), AttentionAlgorithm::kCudnnFloat8);
}

TEST(AttentionChoice, WithoutCudnnOwnMatrixUnitKernelsAreUsed) {
  for (AttentionCall call : {common_call(), float8_call()}) {
    call.cudnn = false;
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kTensor);
    call.hopper = false;
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral);
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral);
  }
}

TEST(AttentionChoice, CudnnComputesFloat8OutputOnlyIfItsScaleIsKnown) {
  AttentionCall call = float8_call();
  call.result_cast_known = false;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
  call = float8_call();
  call.out = DType::kF32;  // FP32 output must be O before any cast
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
}

TEST(AttentionChoice, CudnnIsNotUsedWhereItsResultsWouldDiffer) {
  AttentionCall call = common_call();
  call.shape.dropout = 0.1f;  // cuDNN draws from another generator
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
  call = common_call();
  call.out = DType::kF32;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
  call = common_call();
  call.aligned = false;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral);
}

TEST(AttentionChoice, WindowsUseCudnn_ExceptGradientsInEightBits) {
  for (AttentionCall call : {common_call(), float8_call()}) {
    call.deterministic = false;
    call.shape.window = 1024;
    const bool eight_bits = is_float8(call.operands);
    EXPECT_EQ(choose_forward(call), eight_bits ? AttentionAlgorithm::kCudnnFloat8 : AttentionAlgorithm::kCudnn);
    EXPECT_EQ(choose_backward(call), eight_bits ? AttentionAlgorithm::kTensor : AttentionAlgorithm::kCudnn);
    call.shape.window = std::int64_t{1} << 40;  // limits nothing, and the kernels count keys in 32 bits
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral);
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral);
  }
}

TEST(AttentionChoice, GradientsOfSinksUseOwnKernels_OnMatrixUnitsIfNothingIsQuantized) {
  AttentionCall call = common_call();
  call.deterministic = false;
  call.sinks = true;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kCudnn);
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kTensor);
  AttentionCall cast = float8_call();
  cast.sinks = true;
  EXPECT_EQ(choose_forward(cast), AttentionAlgorithm::kGeneral);
  for (DType AttentionCall::* member : {&AttentionCall::operands, &AttentionCall::o, &AttentionCall::grad_o}) {
    AttentionCall quantized = call;
    quantized.*member = DType::kE4M3;
    EXPECT_EQ(choose_backward(quantized), AttentionAlgorithm::kGeneral);
  }
}

TEST(AttentionChoice, ValuesNarrowerThanKeysUseCudnnInSixteenBits_OrTheGeneralKernels) {
  AttentionCall call = common_call();
  call.shape.head_dim = 192;
  call.shape.value_dim = 128;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kCudnn);
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral);
  call.deterministic = false;
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kCudnn);
  for (AttentionCall other : {common_call(), float8_call()}) {
    other.shape.value_dim = 64;
    other.deterministic = false;
    other.cudnn = other.operands == DType::kE4M3;
    EXPECT_EQ(choose_forward(other), AttentionAlgorithm::kGeneral);
    EXPECT_EQ(choose_backward(other), AttentionAlgorithm::kGeneral);
  }
}

TEST(AttentionChoice, ShortSequencesDoNotUseCudnn) {
  AttentionCall call = common_call();
  call.shape.seq = 128;
  EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kTensor);
}

// cuDNN's deterministic gradients need dP of every head in memory, S x S, which attention must not hold.
TEST(AttentionChoice, DeterministicGradientsDoNotUseCudnn) {
  EXPECT_EQ(choose_backward(common_call()), AttentionAlgorithm::kTensor);
  EXPECT_EQ(choose_backward(float8_call()), AttentionAlgorithm::kTensor);
}

TEST(AttentionChoice, CudnnComputesSixteenBitGradientsIfBitsMayDiffer) {
  AttentionCall call = common_call();
  call.deterministic = false;
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kCudnn);
  AttentionCall mixed = call;
  mixed.out = DType::kF32;
  EXPECT_EQ(choose_backward(mixed), AttentionAlgorithm::kTensor);
  mixed = call;
  mixed.grad_o = DType::kE5M2;
  EXPECT_EQ(choose_backward(mixed), AttentionAlgorithm::kTensor);
  call.shape.seq = 128;
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kTensor);
}

TEST(AttentionChoice, CudnnComputesEightBitGradientsIfTheyAreCastNext) {
  AttentionCall call = float8_call();
  call.deterministic = false;
  EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kCudnnFloat8);
  const auto algorithm_with = [&](const auto& change) {
    AttentionCall changed = call;
    change(changed);
    return choose_backward(changed);
  };
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.deterministic = true; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.result_cast_known = false; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.casts = false; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.o = DType::kBF16; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.grad_o = DType::kE4M3; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.out = DType::kF32; }), AttentionAlgorithm::kTensor);
  EXPECT_EQ(algorithm_with([](AttentionCall& c) { c.shape.head_dim = 64; }), AttentionAlgorithm::kTensor);
}

TEST(AttentionChoice, OtherHeadDimensionsTypesAndScalesUseTheGeneralKernel) {
  for (const std::int64_t head_dim : {8, 80, 96, 256}) {
    AttentionCall call = common_call();
    call.cudnn = false;
    call.shape.head_dim = head_dim;
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral) << head_dim;
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral) << head_dim;
  }
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    AttentionCall call = common_call();
    call.cudnn = false;
    call.operands = call.grad_o = call.out = dtype;
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral);
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral);
  }
  for (const float softmax_scale : {-1.0f, 0.0f, 0x1p-101f}) {
    AttentionCall call = common_call();
    call.cudnn = false;
    call.shape.softmax_scale = softmax_scale;
    EXPECT_EQ(choose_forward(call), AttentionAlgorithm::kGeneral) << softmax_scale;
    EXPECT_EQ(choose_backward(call), AttentionAlgorithm::kGeneral) << softmax_scale;
  }
}

// An algorithm may return O as quantized data times 1 / scale, rounded to 16 bits, if O is cast with `scale` next: the
// error is at most 2^-8 of the value and two float roundings, while half a quantum of E4M3 is at least 2^-5.
template <class Format, class Narrow, class Widen>
void expect_values_survive(float scale, Narrow narrow, Widen widen) {
  const float scale_inv = 1.0f / scale;
  for (int code = 0; code < 256; ++code) {
    const float value = widen(narrow(decode<Format>(static_cast<std::uint8_t>(code)) * scale_inv));
    const bool special = (code & 0x7F) > Format::kMaxCode;
    EXPECT_EQ(static_cast<int>(encode<Format>(value * scale)), special ? kFloat8Nan : code) << "scale " << scale;
  }
}

TEST(AttentionOutput, EightBitsSurviveTheirOwnCast) {
  const CounterRng rng(5, 6);
  for (std::uint64_t i = 0; i < 4000; ++i) {
    // Powers of two and values between them, over every scale that a usual amax gives.
    const float power = std::ldexp(1.0f, static_cast<int>(i % 41) - 20);
    const float scale = i % 3 == 0 ? power : power * (1.0f + rng.uniform(i));
    expect_values_survive<E4M3>(
        scale, [](float x) { return f32_to_bf16(x); }, [](BFloat16 x) { return bf16_to_f32(x); });
    if (HasFailure()) break;
  }
}

// Eight bits of another scale are rounded twice, which some values show: the caller's own scale is needed.
TEST(AttentionOutput, EightBitsOfAnotherScaleChangeInTheCast) {
  const CounterRng rng(5, 7);
  int changed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const float value = rng.normal(i);
    changed += encode<E4M3>(decode<E4M3>(encode<E4M3>(value * 100.0f)) * (1.0f / 100.0f) * 64.0f) !=
               encode<E4M3>(value * 64.0f);
  }
  EXPECT_GT(changed, 100);
}

}  // namespace
}  // namespace fp8lab::cuda
