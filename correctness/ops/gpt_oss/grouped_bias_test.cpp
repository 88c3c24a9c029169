// Biases of products of groups of rows.

#include <gtest/gtest.h>

#include <vector>

#include "ops/experts/grouped_gemm.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using support::make_tensor;
using support::read;
using Values = std::vector<double>;

// Three groups of two columns: four rows, none, and two; the last of seven rows belongs to no group.
const std::vector<RowGroup> kGroups{{.begin = 0, .rows = 4}, {.begin = 4, .rows = 0}, {.begin = 4, .rows = 2}};

class GroupedBiasTest : public ::testing::Test {
 protected:
  HolderId anyone() { return support::anyone(*device_); }
  Tensor random(const Shape& shape, std::uint64_t seed) {
    return make_tensor(*device_, shape, DType::kF32, reference::gaussian_values(shape.numel(), seed));
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device("hopper");
};

TEST_F(GroupedBiasTest, EachGroupHasItsBias_AndRowsBehindTheGroupsHaveNone) {
  const Tensor x = random({7, 3}, 1), w = random({6, 3}, 2), bias = random({6}, 3);
  const auto product = [&](const Tensor* of) {
    return read(
        *device_,
        grouped_gemm(*device_,
                     {.a = x.operand(), .b = w.operand(), .bias = of, .out_dtype = DType::kF32, .holder = anyone()},
                     kGroups));
  };
  const Values plain = product(nullptr), with_bias = product(&bias), of_bias = read(*device_, bias);
  for (std::size_t row = 0; row < 7; ++row)
    for (std::size_t j = 0; j < 2; ++j) {
      const double expected = row == 6 ? 0.0 : plain[row * 2 + j] + of_bias[(row < 4 ? 0 : 4) + j];
      EXPECT_NEAR(with_bias[row * 2 + j], expected, 1e-6) << row;
    }
  const Tensor other = random({4}, 4);
  EXPECT_NE(support::error_of([&] { product(&other); }).find("one for each row of b"), std::string::npos);
}

TEST_F(GroupedBiasTest, TheGradientSumsTheRowsOfEachGroup) {
  const Tensor grad = random({7, 2}, 5);
  const Values rows = read(*device_, grad);
  const Values sums = read(*device_, grouped_bias_gradient(*device_, grad, kGroups, {Shape{6}, DType::kF32}, anyone()));
  for (std::size_t j = 0; j < 2; ++j) {
    EXPECT_NEAR(sums[j], rows[j] + rows[2 + j] + rows[4 + j] + rows[6 + j], 1e-6);
    EXPECT_EQ(sums[2 + j], 0.0) << "a group without rows";
    EXPECT_NEAR(sums[4 + j], rows[8 + j] + rows[10 + j], 1e-6);
  }
}

}  // namespace
}  // namespace fp8lab
