// A witness of a fix is a property that holds with the fix and fails without it. A fix that has none here has one in
// its scenario, whose cells bundled_scenarios_test.cpp compares before and after every fix.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fixes/witness.h"

namespace fp8lab::fixes_test {
namespace {

constexpr std::span<const Witness> (*kAreas[])() = {quantized_storage_witnesses, saved_tensor_witnesses,
                                                    sharding_witnesses,          optimizer_witnesses,
                                                    saved_state_witnesses,       weight_cache_witnesses};

std::vector<Witness> all_witnesses() {
  std::vector<Witness> all;
  for (const auto area : kAreas) all.insert(all.end(), area().begin(), area().end());
  return all;
}

std::vector<std::string_view> names_of_fixes() {
  std::vector<std::string_view> names;
  for (const Fix& row : fixes()) names.push_back(row.name);
  return names;
}

class EveryFix : public ::testing::TestWithParam<std::string_view> {};

TEST_P(EveryFix, WitnessHoldsWithTheFixAndFailsWithoutIt) {
  const std::vector<Witness> all = all_witnesses();
  const auto of_this = [&](const Witness& witness) { return witness.fix == GetParam(); };
  ASSERT_LE(std::count_if(all.begin(), all.end(), of_this), 1);
  const auto found = std::find_if(all.begin(), all.end(), of_this);
  if (found == all.end()) GTEST_SKIP() << "its scenario is its witness";
  const Witness& witness = *found;
  EXPECT_TRUE(witness.holds({}));
  EXPECT_FALSE(witness.holds(without(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Table, EveryFix, ::testing::ValuesIn(names_of_fixes()),
                         [](const auto& test) { return std::string(test.param); });

TEST(Witnesses, NameFixesOfTheTable) {
  for (const Witness& witness : all_witnesses()) EXPECT_NO_THROW(fix(witness.fix)) << witness.fix;
}

}  // namespace
}  // namespace fp8lab::fixes_test
