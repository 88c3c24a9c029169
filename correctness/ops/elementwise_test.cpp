#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/expected.h"
#include "support/dense_test.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using support::make_tensor;
using support::read;
using Values = std::vector<double>;

class Elementwise : public support::DenseTest {};

TEST_F(Elementwise, FillWritesExactlyItsElements) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor full = gaussian({5, 3000}, dtype);
    Values expected = read(*device_, full);
    fill(*device_, full.columns(100, 2500), 0.5f);
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (i % 3000 >= 100 && i % 3000 < 2600) expected[i] = 0.5;
    EXPECT_EQ(read(*device_, full), expected);
  }
}

TEST_F(Elementwise, CastRoundsOnceAndWidensExactly) {
  const Tensor x = gaussian({7, 501});
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor narrow = cast(*device_, x, dtype, anyone());
    Expected expected(static_cast<std::size_t>(x.numel()));
    expected.value = read(*device_, x);
    EXPECT_TRUE(all_within(read(*device_, narrow), rounded_to(dtype, expected)));
    EXPECT_TRUE(refuses_mutations(rounded_to(dtype, expected)));
    const Tensor wide = cast(*device_, narrow, DType::kF32, anyone());
    EXPECT_EQ(read(*device_, wide), read(*device_, narrow));
  }
}

TEST_F(Elementwise, CastToTheSameTypeCopiesBits) {
  const Tensor data = empty({16, 16}, DType::kE4M3);
  std::vector<std::byte> every(256), expected(256);
  for (std::size_t i = 0; i < 256; ++i) {
    every[i] = static_cast<std::byte>(i);
    expected[i] = static_cast<std::byte>((i % 16) * 16 + i / 16);
  }
  device_->write_bytes(data, every);
  EXPECT_EQ(device_->read_bytes(cast(*device_, data, DType::kE4M3, anyone())), device_->read_bytes(data));

  const Tensor transposed = cast(*device_, data.transposed(), DType::kE4M3, anyone());
  EXPECT_TRUE(transposed.contiguous());
  EXPECT_EQ(device_->read_bytes(transposed), expected);
}

TEST_F(Elementwise, CopyIntoSupportsAnyStrides) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Tensor from = gaussian({6, 10}, dtype);
    const Tensor wide = gaussian({10, 9}, DType::kF32, 2);
    const Values before = read(*device_, wide);
    copy_into(*device_, from, wide.columns(2, 6).transposed());
    const Values after = read(*device_, wide), values = read(*device_, from);
    for (std::size_t i = 0; i < 10; ++i)
      for (std::size_t j = 0; j < 9; ++j)
        EXPECT_EQ(after[i * 9 + j], j >= 2 && j < 8 ? values[(j - 2) * 10 + i] : before[i * 9 + j]);
  }
}

TEST_F(Elementwise, AddRoundsOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor a = gaussian({3, 2050}, dtype, 1), b = gaussian({3, 2050}, dtype, 2);
    Expected expected(static_cast<std::size_t>(a.numel()));
    const Values as = read(*device_, a), bs = read(*device_, b);
    for (std::size_t i = 0; i < as.size(); ++i) {
      expected.value[i] = as[i] + bs[i];
      // The sum of two bf16 values is rounded to FP32 before it is rounded again.
      expected.error[i] = dtype == DType::kF32 ? 0.0 : kUnit * std::fabs(expected.value[i]);
    }
    expected = rounded_to(dtype, expected);
    EXPECT_TRUE(all_within(read(*device_, add(*device_, a, b, anyone())), expected));
    EXPECT_TRUE(refuses_mutations(expected));
    add_into(*device_, a, b);
    EXPECT_TRUE(all_within(read(*device_, a), expected));
    EXPECT_EQ(read(*device_, b), bs);
  }
}

TEST_F(Elementwise, AddKernelMultipliesItsTermsByTheirWeights) {
  const Tensor a = gaussian({4, 9}, DType::kF32, 1), b = gaussian({9, 4}, DType::kBF16, 2), out = empty({4, 9});
  device_->launch(&KernelTable::add,
                  AddArgs{.a = a.view(), .b = b.transposed().view(), .out = out.view(), .alpha = 0.25f, .beta = -3.0f});
  const Values as = read(*device_, a), bs = read(*device_, b.transposed());
  Expected expected(as.size());
  for (std::size_t i = 0; i < as.size(); ++i) {
    expected.value[i] = 0.25 * as[i] - 3.0 * bs[i];
    expected.error[i] = kUnit * (std::fabs(expected.value[i]) + std::fabs(3.0 * bs[i]));
  }
  EXPECT_TRUE(all_within(read(*device_, out), rounded_to(DType::kF32, expected)));
}

// rows - 1 additions in FP32; few rows give a tight bound.
TEST_F(Elementwise, ColumnSumIsWithinTheBoundOfItsAdditions) {
  const std::int64_t cols = 37;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t rows : {1, 3, 130}) {
      const Tensor x = gaussian({rows, cols + 3}, dtype).columns(3, cols);
      const Values values = read(*device_, x);
      Expected expected(static_cast<std::size_t>(cols));
      for (std::size_t i = 0; i < values.size(); ++i) {
        expected.value[i % cols] += values[i];
        expected.error[i % cols] += static_cast<double>(rows - 1) * kUnit * std::fabs(values[i]);
      }
      const Tensor sums = column_sum(*device_, x, dtype, anyone());
      EXPECT_EQ(sums.shape(), (Shape{cols}));
      EXPECT_TRUE(all_within(read(*device_, sums), rounded_to(dtype, expected)));
      EXPECT_TRUE(refuses_mutations(rounded_to(dtype, expected)));
    }
  EXPECT_EQ(read(*device_, column_sum(*device_, empty({0, 3}), DType::kF32, anyone())), Values(3, 0.0));
}

/// Rows in parts of max(8, ceil(rows / 256)), in row order; 16 parts make a group, and groups are added in order.
std::vector<float> summed_in_parts_and_groups(const Values& values, std::size_t rows, std::size_t cols) {
  const std::size_t in_part = std::max<std::size_t>(8, (rows + 255) / 256);
  std::vector<float> sums(cols, 0.0f);
  for (std::size_t group = 0; group < rows; group += 16 * in_part)
    for (std::size_t j = 0; j < cols; ++j) {
      float of_group = 0.0f;
      for (std::size_t part = group; part < std::min(rows, group + 16 * in_part); part += in_part) {
        float of_part = 0.0f;
        for (std::size_t i = part; i < std::min(rows, part + in_part); ++i)
          of_part += static_cast<float>(values[i * cols + j]);
        of_group += of_part;
      }
      sums[j] += of_group;
    }
  return sums;
}

// The order of additions depends only on the number of rows, so that devices agree to the last bit.
TEST_F(Elementwise, ColumnSumAddsInTheDefinedOrder) {
  for (const std::int64_t rows : {7, 128, 129, 300, 2100}) {
    const Tensor x = gaussian({rows, 41});
    const Values values = read(*device_, x);
    std::vector<float> one_by_one(41, 0.0f);
    for (std::size_t i = 0; i < values.size(); ++i) one_by_one[i % 41] += static_cast<float>(values[i]);
    const std::vector<float> sums = device_->read(column_sum(*device_, x, DType::kF32, anyone()));
    EXPECT_EQ(sums, summed_in_parts_and_groups(values, static_cast<std::size_t>(rows), 41)) << rows;
    EXPECT_EQ(sums == one_by_one, rows <= 8) << rows;
  }
}

TEST_F(Elementwise, EmptyTensorsGiveEmptyTensors) {
  const Tensor none = empty({0, 8});
  EXPECT_EQ(cast(*device_, none, DType::kBF16, anyone()).shape(), (Shape{0, 8}));
  EXPECT_EQ(add(*device_, none, none, anyone()).shape(), (Shape{0, 8}));
  fill(*device_, none, 1.0f);
}

TEST_F(Elementwise, RefusalsNameTheArgumentAndTheRule) {
  const Tensor x = gaussian({2, 3}), y = gaussian({3, 2}), data = empty({2, 3}, DType::kE4M3);
  EXPECT_EQ(support::error_of([&] { add(*device_, x, y, anyone()); }),
            "add: a is f32 [2, 3] and b is f32 [3, 2]; both must have one shape");
  EXPECT_EQ(support::error_of([&] { add_into(*device_, x, {}); }),
            "add_into: b is absent; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of([&] { copy_into(*device_, x, y); }),
            "copy_into: from is f32 [2, 3] and to is f32 [3, 2]; both must have one shape");
  EXPECT_EQ(support::error_of([&] { cast(*device_, x, DType::kE4M3, anyone()); }),
            "cast: to e4m3; only f32, f16 and bf16 need no scale");
  EXPECT_EQ(support::error_of([&] { cast(*device_, data, DType::kF32, anyone()); }),
            "cast: x is e4m3 [2, 3]; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of([&] { column_sum(*device_, x, DType::kI32, anyone()); }),
            "column_sum: to i32; the sums are f32, f16 or bf16");
  EXPECT_EQ(support::error_of([&] { fill(*device_, data, 1.0f); }),
            "fill: out is e4m3 [2, 3]; it must be an f32, f16 or bf16 tensor");
}

}  // namespace
}  // namespace fp8lab
