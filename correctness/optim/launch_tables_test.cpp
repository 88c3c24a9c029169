// Which tensors of a list the launcher launches a kernel for, and the limits of a list.

#include "optim/launch_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/check.h"
#include "optim/optim_hooks.h"

namespace fp8lab {
namespace {

using Elems = std::vector<std::int64_t>;

constexpr std::int64_t kBlock = 65536;

Elems repeated(std::size_t count, std::int64_t elems, std::initializer_list<std::int64_t> then) {
  Elems list(count, elems);
  list.insert(list.end(), then);
  return list;
}

TEST(LaunchTables, ListWithoutEmptyTensors_IsLaunchedEntirely) {
  for (const Elems& list :
       {Elems{}, Elems{1}, repeated(35, 1, {7}), repeated(36, 1, {7}), repeated(100, 3 * kBlock + 1, {}),
        Elems{320 * kBlock}, Elems{320 * kBlock + 1}, Elems{1, 700 * kBlock, 1}})
    for (const ListDepth depth : {ListDepth::kOne, ListDepth::kFour, ListDepth::kFive})
      EXPECT_EQ(launched_tensors(list, depth), list.size());
}

TEST(LaunchTables, EmptyLastTensor_LosesTheTensorsOfItsTable) {
  EXPECT_EQ(launched_tensors(Elems{5, 0}, ListDepth::kFour), 0u);
  EXPECT_EQ(launched_tensors(Elems{0, 0}, ListDepth::kFour), 0u);
  EXPECT_EQ(launched_tensors(repeated(36, 1, {0}), ListDepth::kFour), 36u);
  EXPECT_EQ(launched_tensors(repeated(37, 1, {0}), ListDepth::kFour), 36u);
  EXPECT_EQ(launched_tensors(repeated(37, 1, {0}), ListDepth::kFive), 30u);
  EXPECT_EQ(launched_tensors(repeated(37, 1, {0}), ListDepth::kOne), 0u);
}

TEST(LaunchTables, EmptyTensorBeforeTheLast_LosesNothing) {
  EXPECT_EQ(launched_tensors(Elems{0, 5}, ListDepth::kFour), 2u);
  EXPECT_EQ(launched_tensors(Elems{5, 0, 5}, ListDepth::kFour), 3u);
}

TEST(LaunchTables, TableFullOfBlocks_IsLaunched) {
  EXPECT_EQ(launched_tensors(Elems{320 * kBlock, 0}, ListDepth::kFour), 1u);
  EXPECT_EQ(launched_tensors(Elems{1, 319 * kBlock, 9, 0}, ListDepth::kFour), 2u);
  // The second tensor's last block is in the second table.
  EXPECT_EQ(launched_tensors(Elems{1, 320 * kBlock, 0}, ListDepth::kFour), 1u);
}

TEST(LaunchTables, TableWhoseLastPlaceIsAnEmptyTensors_Overflows) {
  EXPECT_EQ(launched_tensors(repeated(35, 1, {0}), ListDepth::kFour), 0u);
  EXPECT_THROW(launched_tensors(repeated(35, 1, {0, 1}), ListDepth::kFour), Error);
}

TEST(Handles, AreOneForEachTensorOfEachListAndOneForTheFlag) {
  for (const auto& [tensors, lists] : {std::pair<std::size_t, std::size_t>{5080, 4}, {4064, 5}, {2540, 8}}) {
    EXPECT_NO_THROW(check_handles(tensors, lists));
    EXPECT_THROW(check_handles(tensors + 1, lists), Error);
  }
}

TEST(Counts, OfElementsFit32BitsUpToTheLargestSignedNumber) {
  EXPECT_TRUE(fits_32_bits(2'147'483'647));
  EXPECT_FALSE(fits_32_bits(2'147'483'648));
  EXPECT_FALSE(fits_32_bits((std::int64_t{1} << 32) + 1));  // 1 in 32 bits
}

/// True if the norm of a gradient with so many rows of 65536 elements can be computed.
bool finds_norm(const Behaviors& behaviors, std::int64_t rows) {
  std::vector<MatrixView> gradients{
      {.data = nullptr, .dtype = DType::kBF16, .rows = rows, .cols = kBlock, .row_stride = kBlock}};
  try {
    make_adam_hooks(behaviors, {})->choose_for_norm(gradients);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Counts, In32Bits_LetTheNormReadBeforeATensorWithMoreThan2To31Elements) {
  EXPECT_TRUE(finds_norm({}, 32769));
  EXPECT_TRUE(finds_norm({.count_in_64_bits = false}, 32768));
  EXPECT_FALSE(finds_norm({.count_in_64_bits = false}, 32769));
}

}  // namespace
}  // namespace fp8lab
