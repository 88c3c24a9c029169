// Casts of lists, the norm that Adam clips by, and list operations: the GPU's bytes equal the host's, for every type
// and for lists of odd and empty tensors.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/tensor_pair.h"

namespace fp8lab {
namespace {

using list_test::Both;
using list_test::CastCase;
using list_test::difference;
using list_test::kCasts;
using list_test::kMatrices;
using list_test::kShapes;
using list_test::make;
using list_test::make_orientations;
using list_test::Pair;
using list_test::target_of;
using list_test::TwoOrientations;
using reference::gaussian_values;

TEST(QuantizeListOnGpu, EqualsTheHostForEveryTypeAndScale) {
  Pair pair;
  std::uint64_t seed = 9000;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const CastCase& c : kCasts)
    for (const DType in_type : {DType::kF32, DType::kBF16, DType::kF16})
      for (const float measured : {0.0f, 3.7f, kInf, kNan})  // 0: the scale is known beforehand
        for (const bool odd_values : {false, true}) {
          SCOPED_TRACE(testing::Message() << c.label << " " << name(in_type) << " " << measured);
          const Both amax = make(pair, {Shape{1}, DType::kF32}, {measured});
          std::vector<Both> ins;
          std::vector<TwoOrientations> orientations;
          for (const Shape& shape : kMatrices) {
            std::vector<float> values = gaussian_values(shape.numel(), ++seed);
            if (odd_values && values.size() > 40) values[3] = kInf, values[38] = kNan, values[39] = -0.0f;
            ins.push_back(make(pair, {shape, in_type}, values));
            orientations.push_back(make_orientations(pair, c, shape, 17.0f));
          }
          pair.each([&](std::size_t side, Device& device) {
            std::vector<ListCast> list;
            for (std::size_t i = 0; i < ins.size(); ++i) {
              list.push_back({.in = ins[i][side].view(), .target = target_of(orientations[i], c, side)});
              if (measured == 0.0f) continue;
              list.back().target.scale = nullptr;
              list.back().measured = amax[side].data<const float>();
            }
            device.launch(&KernelTable::quantize_list, QuantizeListArgs{.tensors = list});
          });
          for (const TwoOrientations& one : orientations) {
            EXPECT_EQ(difference(pair, one.rowwise), "");
            EXPECT_EQ(difference(pair, one.columnwise), "");
            EXPECT_EQ(difference(pair, one.scale_inv), "");
            const float host = pair.devices[0]->read(one.amax[0]).front(),
                        gpu = pair.devices[1]->read(one.amax[1]).front();
            EXPECT_TRUE(host == gpu || (std::isnan(host) && std::isnan(gpu))) << host << ", " << gpu;
          }
        }
}

TEST(SquareSumOnGpu, EqualsTheHostForEveryListAndType) {
  Pair pair;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<Both> tensors;
    std::uint64_t seed = 50;
    for (const Shape& shape : kShapes)
      tensors.push_back(make(pair, {shape, dtype}, gaussian_values(shape.numel(), ++seed, 3.0)));
    // More partial sums than lanes of a warp, so that the second level of the sum loops.
    tensors.push_back(make(pair, {{1200, 16384}, dtype}, gaussian_values(1200 * 16384, ++seed)));
    tensors.push_back(make(pair, {{16387}, dtype}, gaussian_values(16387, ++seed)));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4}, tensors.size()}) {
      const Both sum = make(pair, {Shape{1}, DType::kF32}, {-1.0f}),
                 norm = make(pair, {Shape{1}, DType::kF32}, {-1.0f}),
                 coefficient = make(pair, {Shape{1}, DType::kF32}, {-1.0f});
      pair.each([&](std::size_t side, Device& device) {
        std::vector<MatrixView> views;
        for (std::size_t i = 0; i < count; ++i) views.push_back(tensors[i][side].view());
        if (count > 4) views.push_back(tensors[3][side].transposed().view());
        device.launch(&KernelTable::square_sum, SquareSumArgs{.tensors = views, .sum = sum[side].data<float>()});
        device.launch(&KernelTable::clip_coefficient,
                      ClipCoefficientArgs{.square_sum = sum[side].data<const float>(),
                                          .max_norm = 2.5f,
                                          .norm = norm[side].data<float>(),
                                          .coefficient = coefficient[side].data<float>()});
      });
      EXPECT_EQ(difference(pair, sum), "") << count;
      EXPECT_EQ(difference(pair, norm), "") << count;
      EXPECT_EQ(difference(pair, coefficient), "") << count;
    }
  }
}

TEST(ListOpOnGpu, EqualsTheHostForEveryOperationAndType) {
  Pair pair;
  const ListOp ops[] = {ListOp::kScale, ListOp::kAdd,         ListOp::kAddList, ListOp::kSqrt,
                        ListOp::kLerp,  ListOp::kLerpProduct, ListOp::kAddcdiv};
  const DType types[] = {DType::kF32, DType::kBF16};
  std::uint64_t seed = 500;
  for (const ListOp op : ops)
    for (const DType out_type : types)
      for (const DType a_type : types) {
        const float scalar = a_type == out_type ? 0.375f : 0.875f;
        SCOPED_TRACE(testing::Message() << static_cast<int>(op) << " " << name(out_type) << " " << name(a_type));
        std::vector<Both> outs, as, bs;
        for (const Shape& shape : kShapes) {
          std::vector<float> values = gaussian_values(shape.numel(), ++seed);
          if (op == ListOp::kSqrt)  // the host's NaNs have another sign bit
            for (float& x : values) x = std::fabs(x);
          outs.push_back(make(pair, {shape, out_type}, values));
          as.push_back(make(pair, {shape, a_type}, gaussian_values(shape.numel(), ++seed)));
          bs.push_back(make(pair, {shape, out_type}, gaussian_values(shape.numel(), ++seed)));
        }
        pair.each([&](std::size_t side, Device& device) {
          std::vector<ListOpTensor> list;
          for (std::size_t i = 0; i < outs.size(); ++i)
            list.push_back({.out = outs[i][side].view(), .a = as[i][side].view(), .b = bs[i][side].view()});
          device.launch(&KernelTable::list_op, ListOpArgs{.op = op, .tensors = list, .scalar = scalar});
        });
        for (const Both& out : outs) EXPECT_EQ(difference(pair, out), "");
      }
}

}  // namespace
}  // namespace fp8lab
