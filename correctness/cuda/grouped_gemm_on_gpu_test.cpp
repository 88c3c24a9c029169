#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cuda/gemm/gemm_plan.h"
#include "cuda/large_products.h"
#include "ops/experts/grouped_gemm.h"

// Products over groups of rows on the GPU. Each product's sums are exact, so that they have the bits of the cpu kernel;
// and every group of every recipe goes through the library, whatever part of its operands it reads.
namespace fp8lab {
namespace {

using namespace gemm_test;

/// The operands of the three products of a recipe, and the multiple to which it pads the rows of a group.
struct Products {
  const char* name;
  Kinds output;
  Kinds input_gradient;
  Kinds weight_gradient;
  std::int64_t multiple;
};
constexpr Products kProducts[] = {
    {"f32", {Kind::kF32, Kind::kF32}, {Kind::kF32, Kind::kF32, false, true}, {Kind::kF32, Kind::kF32, true, true}, 1},
    {"bf16",
     {Kind::kBF16, Kind::kBF16},
     {Kind::kBF16, Kind::kBF16, false, true},
     {Kind::kBF16, Kind::kBF16, true, true},
     1},
    {"tensor",
     {Kind::kPerTensor, Kind::kPerTensor},
     {Kind::kE5M2PerTensor, Kind::kPerTensor},
     {Kind::kE5M2PerTensor, Kind::kPerTensor},
     16},
    {"block",
     {Kind::kRowBlocks, Kind::kSquareBlocks},
     {Kind::kRowBlocks, Kind::kSquareBlocks},
     {Kind::kRowBlocks, Kind::kRowBlocks},
     128},
    {"mxfp8",
     {Kind::kMxfp8, Kind::kMxfp8},
     {Kind::kMxfp8, Kind::kMxfp8, false, true},
     {Kind::kMxfp8, Kind::kMxfp8, true, true},
     32}};

/// Groups of one unit, of none, of many; `tail` rows follow the last.
struct Split {
  std::vector<RowGroup> groups;
  std::int64_t rows = 0;
};
Split split_by(std::int64_t multiple, std::int64_t tail) {
  Split split;
  for (const std::int64_t units : {1, 0, 3, 2, 0}) {
    const std::int64_t rows = multiple == 1 ? 37 * units : multiple * units;
    split.groups.push_back({.begin = split.rows, .rows = rows});
    split.rows += rows;
  }
  split.rows += tail * (multiple == 1 ? 5 : multiple);
  return split;
}

class GroupedGemmOnGpu : public ::testing::TestWithParam<Products> {
 protected:
  using Product = Tensor (*)(Device&, const GemmInputs&, std::span<const RowGroup>);

  /// Compares the product on both devices; `a` and `b` are [rows, cols] of each operand.
  void compare(const char* what, Product product, const Kinds& kinds, const Shape& a, const Shape& b,
               const Split& split, bool fast) {
    const LargeOperand first = operand(kinds, true, a.rows(), a.cols(), Draw::kIntegers),
                       second = operand(kinds, false, b.rows(), b.cols(), Draw::kIntegers);
    for (const DType out : {DType::kF32, DType::kBF16}) {
      const auto bytes = [&](Device& device) {
        const LargeOperand::OnDevice on_a = first.put_on(device), on_b = second.put_on(device);
        return device.read_bytes(product(device,
                                         {.a = on_a.view,
                                          .b = on_b.view,
                                          .out_dtype = out,
                                          .holder = support::anyone(device),
                                          .fast_accumulation = fast},
                                         split.groups));
      };
      EXPECT_EQ(bytes(*gpu_), bytes(*cpu_)) << what << " in " << name(out) << ", " << split.rows << " rows";
    }
  }

  std::unique_ptr<Device> gpu_ = open("cuda"), cpu_ = open("cpu");
};

TEST_P(GroupedGemmOnGpu, ExactSumsHaveTheBitsOfTheCpu) {
  const Products& products = GetParam();
  constexpr std::int64_t kIn = 384, kOut = 256;
  for (const std::int64_t tail : {0, 1}) {
    const Split split = split_by(products.multiple, tail);
    const std::int64_t matrices = std::ssize(split.groups);
    compare("output", grouped_gemm, products.output, {split.rows, kIn}, {matrices * kOut, kIn}, split, true);
    compare("gradient of the input", grouped_gemm_input_gradient, products.input_gradient, {split.rows, kOut},
            {kIn, matrices * kOut}, split, false);
    compare("gradient of the weight", grouped_gemm_weight_gradient, products.weight_gradient, {kOut, split.rows},
            {kIn, split.rows}, split, false);
  }
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).general, 0);
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).declined, 0);
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, GroupedGemmOnGpu, ::testing::ValuesIn(kProducts),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace fp8lab
