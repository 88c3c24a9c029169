// Which tensors of a list the launcher launches a kernel for.

#include "optim/launch_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/check.h"

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

}  // namespace
}  // namespace fp8lab
