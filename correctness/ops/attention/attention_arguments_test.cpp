#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "ops/attention/attention_fixture.h"
#include "support/error_of.h"

namespace fp8lab::attention_test {
namespace {

/// A valid call of either direction, in which a test invalidates one argument.
struct Call {
  AttentionInputs forward;
  AttentionBackwardInputs backward;
};

class AttentionArgumentsTest : public ::testing::Test {
 protected:
  static constexpr float kScale = 1.0f;

  Call valid(DType dtype) {
    const AttentionShape shape = make_shape({.seq = 6, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 8});
    Call call;
    call.forward.shape = shape;
    call.forward.q = operand(12, 32, dtype);
    call.forward.k = operand(12, 16, dtype);
    call.forward.v = operand(12, 16, dtype);
    call.forward.out_dtype = DType::kBF16;
    call.backward.shape = shape;
    call.backward.q = call.forward.q;
    call.backward.k = call.forward.k;
    call.backward.v = call.forward.v;
    call.backward.o = operand(12, 32, DType::kBF16);
    call.backward.grad_o = operand(12, 32, dtype);
    call.backward.lse = make_tensor(*device_, 8, 6, DType::kF32);
    call.backward.out = {make_tensor(*device_, 12, 32, DType::kBF16), make_tensor(*device_, 12, 16, DType::kBF16),
                         make_tensor(*device_, 12, 16, DType::kBF16)};
    if (dtype == DType::kE4M3) {
      call.forward.s = {.dtype = DType::kE4M3, .scale = &kScale};
      call.backward.s = call.forward.s;
      call.backward.grad_p = {.dtype = DType::kE5M2, .scale = &kScale};
    }
    return call;
  }

  OperandView operand(std::int64_t rows, std::int64_t cols, DType dtype) {
    Operand made{make_tensor(*device_, rows, cols, dtype), {}};
    if (dtype == DType::kE4M3) made.scale_inv = make_scalar(*device_, 1.0f);
    tensors_.push_back(made);
    return made.view();
  }

  /// The message of the Error that the call throws, or nothing.
  std::string forward_error(DType dtype, const std::function<void(AttentionInputs&)>& spoil) {
    Call call = valid(dtype);
    spoil(call.forward);
    return support::error_of([&] { attention_forward(*device_, call.forward); });
  }
  std::string backward_error(DType dtype, const std::function<void(AttentionBackwardInputs&)>& spoil) {
    Call call = valid(dtype);
    spoil(call.backward);
    return support::error_of([&] { attention_backward(*device_, call.backward); });
  }

  std::unique_ptr<Device> device_ = open_device("meta");

 private:
  std::vector<Operand> tensors_;
};

TEST_F(AttentionArgumentsTest, ValidCallsPass) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3}) {
    EXPECT_EQ(forward_error(dtype, [](AttentionInputs&) {}), "") << name(dtype);
    EXPECT_EQ(backward_error(dtype, [](AttentionBackwardInputs&) {}), "") << name(dtype);
  }
}

TEST_F(AttentionArgumentsTest, ShapesMustFit) {
  EXPECT_EQ(
      forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.kv_heads = 3; }),
      "attention_forward: heads is 4 and kv_heads 3; heads must be a multiple of kv_heads, so that each key/value head "
      "serves equally many query heads");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.head_dim = 0; }),
            "attention_forward: seq 6, batch 2, heads 4, kv_heads 2, head_dim 0; the last three must be at least 1, "
            "none negative");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.k = in.q; }),
            "attention_forward: k is bf16 [12, 32]; it must be [seq * batch, heads * head_dim] = [6 * 2, 2 * 8]");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.v.values.col_stride = 2; }),
            "attention_forward: v is bf16 [12, 16] with columns 2 elements apart; a row's columns must be contiguous");
  EXPECT_EQ(backward_error(DType::kBF16, [](AttentionBackwardInputs& in) { in.grad_o = in.k; }),
            "attention_backward: grad_o is bf16 [12, 16]; it must be [seq * batch, heads * head_dim] = [6 * 2, 4 * 8]");
  EXPECT_EQ(backward_error(DType::kBF16, [](AttentionBackwardInputs& in) { in.out.k = in.out.q; }),
            "attention_backward: grad_k is bf16 [12, 32]; it must be [seq * batch, heads * head_dim] = [6 * 2, 2 * 8]");
  EXPECT_EQ(backward_error(DType::kBF16, [](AttentionBackwardInputs& in) { in.lse = in.lse.reshaped(Shape{6, 8}); }),
            "attention_backward: lse is [6, 8]; it must be a contiguous [batch * heads, seq] = [2 * 4, 6]");
}

TEST_F(AttentionArgumentsTest, NumbersMustBeInRange) {
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.window = -1; }),
            "attention_forward: window is -1; it must be 0, or positive under a causal mask");
  EXPECT_EQ(forward_error(DType::kBF16,
                          [](AttentionInputs& in) {
                            in.shape.window = 2;
                            in.shape.causal = false;
                          }),
            "attention_forward: window is 2; it must be 0, or positive under a causal mask");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.dropout = 1.0f; }),
            "attention_forward: dropout is 1; it must lie in [0, 1)");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.dropout = std::nanf(""); }),
            "attention_forward: dropout is nan; it must lie in [0, 1)");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.shape.softmax_scale = std::nanf(""); }),
            "attention_forward: softmax_scale is nan; it must be finite");
}

TEST_F(AttentionArgumentsTest, TypesMustFit) {
  EXPECT_EQ(forward_error(DType::kBF16, [this](AttentionInputs& in) { in.k = operand(12, 16, DType::kF32); }),
            "attention_forward: q, k and v are bf16, f32 and bf16; all three must have one type");
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.q.values.dtype = DType::kI32; }),
            "attention_forward: q is i32 [12, 32]; it must be f32, f16, bf16, or FP8 with a scale");
  EXPECT_EQ(forward_error(DType::kE4M3, [](AttentionInputs& in) { in.q.scales = {}; }),
            "attention_forward: q is e4m3 [12, 32] without one f32 scale; FP8 operands of attention are quantized per "
            "tensor");
  EXPECT_EQ(forward_error(DType::kE4M3, [](AttentionInputs& in) { in.q.scales.block_cols = 32; }),
            "attention_forward: q is e4m3 [12, 32] without one f32 scale; FP8 operands of attention are quantized per "
            "tensor");
  EXPECT_EQ(forward_error(DType::kE4M3, [](AttentionInputs& in) { in.out_dtype = DType::kE4M3; }),
            "attention_forward: out_dtype is e4m3; it must be f32, f16 or bf16");
  EXPECT_EQ(
      backward_error(DType::kBF16,
                     [this](AttentionBackwardInputs& in) { in.out.v = make_tensor(*device_, 12, 16, DType::kE5M2); }),
      "attention_backward: grad_v is e5m2 [12, 16]; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(backward_error(DType::kBF16,
                           [this](AttentionBackwardInputs& in) { in.lse = make_tensor(*device_, 8, 6, DType::kBF16); }),
            "attention_backward: lse is bf16 [8, 6]; it must be f32");
}

TEST_F(AttentionArgumentsTest, CastRolesNeedFloat8Operands) {
  EXPECT_EQ(forward_error(DType::kBF16, [](AttentionInputs& in) { in.s.scale = &kScale; }),
            "attention_forward: role s is cast to e4m3 while v is bf16; a cast role needs FP8 operands");
  EXPECT_EQ(forward_error(DType::kE4M3, [](AttentionInputs& in) { in.s.dtype = DType::kBF16; }),
            "attention_forward: role s is cast to bf16; it must be an FP8 type (e4m3, e5m2)");
  EXPECT_EQ(
      backward_error(DType::kE4M3, [this](AttentionBackwardInputs& in) { in.grad_o = operand(12, 32, DType::kBF16); }),
      "attention_backward: role s is cast to e4m3 while grad_o is bf16; a cast role needs FP8 operands");
  EXPECT_EQ(backward_error(DType::kBF16,
                           [](AttentionBackwardInputs& in) { in.grad_p = {.dtype = DType::kE5M2, .scale = &kScale}; }),
            "attention_backward: role grad_p is cast to e5m2 while k is bf16; a cast role needs FP8 operands");
}

TEST_F(AttentionArgumentsTest, OutputMustBeCastToFloat8) {
  EXPECT_EQ(
      forward_error(DType::kE4M3, [](AttentionInputs& in) { in.o_cast = {.dtype = DType::kBF16, .scale = &kScale}; }),
      "attention_forward: O will be cast to bf16; it must be an FP8 type (e4m3, e5m2)");
}

}  // namespace
}  // namespace fp8lab::attention_test
