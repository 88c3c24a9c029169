#include "ops/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ops/gemm/gemm_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using support::make_tensor;
using support::read;
using namespace gemm_test;

struct GemmCase {
  Kind a;
  Kind b;
  Path path = Path::kDirect;
  const char* arch = "hopper";
  DType out = DType::kF32;
};

std::string gemm_name(const ::testing::TestParamInfo<GemmCase>& instance) {
  const GemmCase& c = instance.param;
  constexpr const char* kPaths[] = {"direct", "transposed", "columnwise"};
  return std::string(name_of(c.a)) + "_" + name_of(c.b) + "_" + kPaths[static_cast<int>(c.path)] + "_" + c.arch + "_" +
         std::string(name(c.out));
}

class Gemm : public ::testing::TestWithParam<GemmCase> {};

TEST_P(Gemm, IsWithinTheBoundOfItsReductionAtEverySize) {
  constexpr std::int64_t kReductions[][3] = {{1, 1, 1},      {1, 9, 3},      {17, 1, 33},
                                             {33, 31, 32},   {64, 48, 128},  {5, 130, 129},
                                             {127, 129, 65}, {257, 129, 65}, {130, 140, 300}};
  const GemmCase c = GetParam();
  const std::unique_ptr<Device> device = support::open_poisoned_device(c.arch);
  for (const auto& [m, n, k] : kReductions) {
    SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
    const Operand a = make_operand(*device, {.kind = c.a, .path = c.path, .rows = m, .cols = k, .seed = 1});
    const Operand b = make_operand(*device, {.kind = c.b, .path = c.path, .rows = n, .cols = k, .seed = 2});
    const Tensor out = gemm(*device, {.a = a.view, .b = b.view, .out_dtype = c.out});
    const MatrixUnit* const unit = summed_by(*device, a, b);
    const Expected expected = product(a, b, {}, c.out, unit);
    EXPECT_EQ(out.shape(), (Shape{m, n}));
    EXPECT_EQ(out.dtype(), c.out);
    EXPECT_TRUE(all_within(read(*device, out), expected));
    if (m * n > 8 && unit == nullptr) {
      EXPECT_TRUE(refuses_mutations(expected));
    }
    EXPECT_FALSE(all_within(Values(expected.value.size(), 0.0), expected));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plain, Gemm,
    ::testing::Values(GemmCase{Kind::kF32, Kind::kF32}, GemmCase{Kind::kF32, Kind::kF32, Path::kTransposedView},
                      GemmCase{Kind::kBF16, Kind::kBF16, Path::kDirect, "hopper", DType::kBF16},
                      GemmCase{Kind::kBF16, Kind::kBF16, Path::kTransposedView, "hopper", DType::kBF16},
                      GemmCase{Kind::kBF16, Kind::kF32, Path::kDirect, "blackwell", DType::kF16},
                      GemmCase{Kind::kF16, Kind::kF16, Path::kTransposedView}),
    gemm_name);

INSTANTIATE_TEST_SUITE_P(
    Quantized, Gemm,
    ::testing::Values(GemmCase{Kind::kPerTensor, Kind::kPerTensor},
                      GemmCase{Kind::kPerTensor, Kind::kPerTensor, Path::kColumnwise},
                      GemmCase{Kind::kE5M2PerTensor, Kind::kPerTensor, Path::kColumnwise, "hopper", DType::kBF16},
                      GemmCase{Kind::kPerTensor, Kind::kPerTensor, Path::kTransposedView, "blackwell"},
                      GemmCase{Kind::kRowBlocks, Kind::kSquareBlocks},
                      GemmCase{Kind::kRowBlocks, Kind::kRowBlocks, Path::kColumnwise},
                      GemmCase{Kind::kRowBlocks, Kind::kSquareBlocks, Path::kColumnwise, "blackwell", DType::kBF16},
                      GemmCase{Kind::kSquareBlocks, Kind::kSquareBlocks, Path::kTransposedView, "blackwell"},
                      GemmCase{Kind::kMxfp8, Kind::kMxfp8},
                      GemmCase{Kind::kMxfp8, Kind::kMxfp8, Path::kColumnwise, "blackwell"},
                      GemmCase{Kind::kMxfp8, Kind::kMxfp8, Path::kColumnwise, "hopper", DType::kBF16}),
    gemm_name);

class GemmEdges : public ::testing::Test {
 protected:
  Tensor make(const Shape& shape, DType dtype = DType::kF32, std::uint64_t seed = 1) {
    return make_tensor(*device_, shape, dtype, reference::gaussian_values(shape.numel(), seed));
  }
  Operand operand(Kind kind, std::int64_t rows, std::int64_t cols, std::uint64_t seed = 1) {
    return make_operand(*device_, {.kind = kind, .rows = rows, .cols = cols, .seed = seed});
  }
  std::string error_of(const GemmInputs& inputs) {
    return support::error_of([&] { gemm(*device_, inputs); });
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_F(GemmEdges, AddsTheBias) {
  const Operand a = operand(Kind::kBF16, 5, 7), b = operand(Kind::kBF16, 12, 7, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor bias = make({12}, dtype, 3);
    const Tensor out = gemm(*device_, {.a = a.view, .b = b.view, .bias = &bias, .out_dtype = DType::kBF16});
    const Expected expected = product(a, b, read(*device_, bias), DType::kBF16);
    EXPECT_TRUE(all_within(read(*device_, out), expected));
    EXPECT_FALSE(all_within(read(*device_, out), product(a, b, {}, DType::kBF16)));
  }
}

TEST_F(GemmEdges, AccumulatesBeforeTheOnlyRounding) {
  const Operand a = operand(Kind::kF32, 5, 7), b = operand(Kind::kF32, 12, 7, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor out = make({5, 12}, dtype, 3);
    const Values before = read(*device_, out);
    device_->launch(&KernelTable::gemm,
                    GemmArgs{.a = a.view, .b = b.view, .out = out.view(), .bias = {}, .accumulate = true});
    Expected expected = product(a, b, {}, DType::kF32);
    for (std::size_t i = 0; i < before.size(); ++i) {
      expected.value[i] += before[i];
      expected.error[i] += kUnit * (std::fabs(expected.value[i]) + std::fabs(before[i]));
    }
    EXPECT_TRUE(all_within(read(*device_, out), rounded_to(dtype, std::move(expected))));
  }
}

// Strides of a packed projection, of a repeated row, and of every third column.
TEST_F(GemmEdges, ReadsAndWritesAnyStrides) {
  const Tensor wide = make({9, 30});
  const Values held = read(*device_, wide);
  MatrixView every_third = wide.view();
  every_third.cols = 10;
  every_third.col_stride = 3;
  MatrixView repeated = wide.view();
  repeated.cols = 10;
  repeated.row_stride = 0;
  const auto operand_of = [&](const MatrixView& view) {
    Operand result{
        .view = {view, {}}, .values = {}, .rows = view.rows, .cols = view.cols, .plain = {}, .quantized = {}};
    for (std::int64_t i = 0; i < view.rows; ++i)
      for (std::int64_t j = 0; j < view.cols; ++j)
        result.values.push_back(held[static_cast<std::size_t>(view.as<float>() - wide.view().as<float>() +
                                                              i * view.row_stride + j * view.col_stride)]);
    return result;
  };
  const Tensor target = make({20, 9});
  const Values untouched = read(*device_, target);
  const Operand b = operand_of(wide.columns(20, 10).view());
  for (const MatrixView& view : {every_third, repeated}) {
    const Operand a = operand_of(view);
    const Tensor part = target.row_range(5, 9);
    device_->launch(&KernelTable::gemm,
                    GemmArgs{.a = a.view, .b = b.view, .out = part.view().transposed(), .bias = {}});
    EXPECT_TRUE(all_within(read(*device_, part.transposed()), product(a, b, {}, DType::kF32)));
  }
  const Values after = read(*device_, target);
  for (std::size_t i = 0; i < 5 * 9; ++i) EXPECT_EQ(after[i], untouched[i]);
  for (std::size_t i = 14 * 9; i < 20 * 9; ++i) EXPECT_EQ(after[i], untouched[i]);
}

TEST_F(GemmEdges, EmptyDimensionsGiveEmptyOrBiasOnlyResults) {
  const auto out = [&](const Shape& a, const Shape& b, const Tensor* bias) {
    return gemm(*device_, {.a = make(a).operand(), .b = make(b).operand(), .bias = bias, .out_dtype = DType::kF32});
  };
  EXPECT_EQ(out({0, 4}, {3, 4}, nullptr).shape(), (Shape{0, 3}));
  EXPECT_EQ(out({2, 4}, {0, 4}, nullptr).shape(), (Shape{2, 0}));
  EXPECT_EQ(read(*device_, out({2, 0}, {3, 0}, nullptr)), Values(6, 0.0));
  const Tensor bias = make_tensor(*device_, {3}, DType::kF32, {1, 2, 3});
  EXPECT_EQ(read(*device_, out({2, 0}, {3, 0}, &bias)), (Values{1, 2, 3, 1, 2, 3}));
}

// Neither an operand times its scale nor the product of the scales needs to be representable as a normal float.
TEST_F(GemmEdges, PerTensorScalesMultiplyTheFinishedSum) {
  const auto with_scale = [&](float scale, std::uint64_t seed) {
    Operand result = operand(Kind::kPerTensor, 3, 4, seed);
    const Tensor& scale_inv = result.quantized.rowwise().scale_inv;
    const double before = read(*device_, scale_inv).front();
    device_->write(scale_inv, std::vector<float>{scale});
    for (double& value : result.values) value = value / before * double{scale};
    return result;
  };
  for (const auto& [scale_a, scale_b] : {std::pair{0x1p-140f, 0x1p+127f}, {0x1.54321p-72f, 0x1.36789p-66f}}) {
    const Operand a = with_scale(scale_a, 1), b = with_scale(scale_b, 2);
    const Tensor out = gemm(*device_, {.a = a.view, .b = b.view, .out_dtype = DType::kF32});
    EXPECT_TRUE(all_within(read(*device_, out), product(a, b, {}, DType::kF32)));
  }
}

TEST_F(GemmEdges, TransposedViewOfQuantizedDataIsRefusedOnHopperOnly) {
  const auto inputs_on = [](Device& device) {
    const Operand a = make_operand(device, {.kind = Kind::kPerTensor, .rows = 4, .cols = 6, .seed = 1});
    const Operand b = make_operand(
        device, {.kind = Kind::kPerTensor, .path = Path::kTransposedView, .rows = 5, .cols = 6, .seed = 2});
    return support::error_of([&] { gemm(device, {.a = a.view, .b = b.view}); });
  };
  EXPECT_EQ(
      inputs_on(*device_),
      "gemm: a is e4m3 [4, 6] scaled per tensor, b is e4m3 [5, 6] scaled per tensor; 'hopper' reads quantized operands "
      "along the reduction axis only, so the column-wise orientation is needed instead of a transposed view");
  EXPECT_EQ(inputs_on(*open_device("cpu", {.arch = "blackwell", .memory = {}})), "");
  // There a microscaled product is emulated from values, so its operands may have any layout.
  const Operand mx = make_operand(*device_, {.kind = Kind::kMxfp8, .path = Path::kColumnwise, .rows = 4, .cols = 64});
  EXPECT_EQ(mx.view.values.row_stride, 1);
  EXPECT_EQ(error_of({.a = mx.view, .b = mx.view}), "");
}

TEST_F(GemmEdges, RefusalsNameOperandsAndRule) {
  const Tensor x = make({4, 6}), y = make({5, 7}), six = make({6});
  EXPECT_EQ(error_of({.a = x.operand(), .b = y.operand()}),
            "gemm: a is f32 [4, 6], b is f32 [5, 7]; the product [m, n] is over the columns of a [m, k] and b [n, k]");
  EXPECT_EQ(error_of({.a = x.operand(), .b = x.operand(), .bias = &six}),
            "gemm: bias is f32 [6]; it must have 4 elements, one for each row of b");
  EXPECT_EQ(error_of({.a = x.operand(), .b = x.operand(), .out_dtype = DType::kE4M3}),
            "gemm: the result is to be e4m3; it must be f32, f16 or bf16");
  EXPECT_EQ(error_of({.a = make({4, 6}, DType::kE4M3).operand(), .b = x.operand()}),
            "gemm: a is e4m3 [4, 6], b is f32 [4, 6]; operands are f32, f16 or bf16, or e4m3 or e5m2 with scales");

  const Operand tensor = operand(Kind::kPerTensor, 4, 128), e5m2 = operand(Kind::kE5M2PerTensor, 4, 128);
  const Operand blocks = operand(Kind::kRowBlocks, 4, 128), mx = operand(Kind::kMxfp8, 4, 128);
  const Operand plain = operand(Kind::kBF16, 4, 128);
  const auto ending = [&](const Operand& a, const Operand& b) {
    const std::string message = error_of({.a = a.view, .b = b.view});
    return message.substr(message.rfind("; ") + 2);
  };
  EXPECT_EQ(ending(tensor, plain), "both operands must be quantized, or neither");
  EXPECT_EQ(ending(e5m2, e5m2), "at most one operand may be e5m2");
  EXPECT_EQ(ending(tensor, blocks), "both must be scaled alike along the reduction axis");
  EXPECT_EQ(ending(blocks, mx), "both must be scaled alike along the reduction axis");
  EXPECT_EQ(error_of({.a = blocks.view, .b = mx.view}).substr(0, 80),
            "gemm: a is e4m3 [4, 128] scaled by 1 x 128 f32, b is e4m3 [4, 128] scaled by 1 x");
}

}  // namespace
}  // namespace fp8lab
