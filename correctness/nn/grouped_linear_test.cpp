// The groups of a grouped linear, and the recipes that accept them.

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "nn/layer_table.h"
#include "recipe/recipe.h"

namespace fp8lab {
namespace {

using Rows = std::vector<std::int64_t>;

LayerConfig config_of(std::int64_t tokens, std::int64_t experts, bool uneven) {
  LayerConfig config;
  config.hidden = 128;
  config.seq = tokens;
  config.experts = experts;
  config.uneven_split = uneven;
  return config;
}

Rows rows(std::int64_t tokens, std::int64_t experts, bool uneven) {
  return config_of(tokens, experts, uneven).group_rows();
}

TEST(GroupRows, AreEqualInAnEvenSplit) {
  EXPECT_EQ(rows(8192, 4, false), (Rows{2048, 2048, 2048, 2048}));
  EXPECT_EQ(rows(256, 4, false), (Rows{64, 64, 64, 64}));  // fewer blocks of 128 than experts
  EXPECT_EQ(rows(10, 4, false), (Rows{2, 3, 2, 3}));
  EXPECT_EQ(rows(7, 1, false), Rows{7});
}

TEST(GroupRows, DifferInAnUnevenSplitAndOneIsEmpty) {
  EXPECT_EQ(rows(8192, 4, true), (Rows{36 * 128, 0, 18 * 128, 10 * 128}));
  EXPECT_EQ(rows(10, 4, true), (Rows{4, 0, 4, 2}));
  EXPECT_EQ(rows(7, 1, true), Rows{7});
}

// Blocks that fit all tokens fit every group of an uneven split, even if some get none.
TEST(GroupRows, EvenGroupsAreEqualAndUnevenOnesMultiplesOfTheBlocksThatDivideAllTokens) {
  for (const std::int64_t tokens : {1, 6, 8, 96, 128, 384, 1048})
    for (const std::int64_t experts : {1, 2, 3, 8, 129})
      for (const bool uneven : {false, true}) {
        const Rows groups = rows(tokens, experts, uneven);
        EXPECT_EQ(std::ssize(groups), experts);
        EXPECT_EQ(std::accumulate(groups.begin(), groups.end(), std::int64_t{0}), tokens);
        for (const std::int64_t group : groups) {
          if (uneven)
            EXPECT_EQ(group % std::gcd(tokens, std::int64_t{128}), 0);
          else
            EXPECT_LE(std::abs(group * experts - tokens), experts);  // equal except for one row
        }
        if (uneven && experts > 1) {
          EXPECT_EQ(groups[1], 0);
        }
      }
}

TEST(GroupRows, AreRefusedWhereARecipesBlocksDoNotFit) {
  const LayerRow& layer = layer_row("grouped_linear");
  EXPECT_EQ(broken_layer_rule(layer, config_of(512, 4, true), make_recipe("mxfp8")), "");
  EXPECT_EQ(broken_layer_rule(layer, config_of(512, 4, true), make_recipe("block")), "");
  const std::string broken = broken_layer_rule(layer, config_of(80, 4, false), make_recipe("mxfp8"));
  EXPECT_NE(broken.find("grouped_linear"), std::string::npos) << broken;
  EXPECT_NE(broken.find("input of a group"), std::string::npos) << broken;
}

}  // namespace
}  // namespace fp8lab
