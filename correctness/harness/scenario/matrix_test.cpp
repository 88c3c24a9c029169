#include "harness/scenario/matrix.h"

#include <gtest/gtest.h>

namespace fp8lab {
namespace {

const Matrix kFruit{{{"fruit", {"apple", "pear"}}, {"animal", {"cat", "dog"}}}, {}, {}};

TEST(Matrix, IncludeFollowsTheExampleOfGitHubsDocumentation) {
  Matrix matrix = kFruit;
  matrix.include = {{{"color", "green"}},
                    {{"color", "pink"}, {"animal", "cat"}},
                    {{"fruit", "apple"}, {"shape", "circle"}},
                    {{"fruit", "banana"}},
                    {{"fruit", "banana"}, {"animal", "cat"}}};
  const std::vector<Axes> expected{
      {{"fruit", "apple"}, {"animal", "cat"}, {"color", "pink"}, {"shape", "circle"}},
      {{"fruit", "apple"}, {"animal", "dog"}, {"color", "green"}, {"shape", "circle"}},
      {{"fruit", "pear"}, {"animal", "cat"}, {"color", "pink"}},
      {{"fruit", "pear"}, {"animal", "dog"}, {"color", "green"}},
      {{"fruit", "banana"}},
      {{"fruit", "banana"}, {"animal", "cat"}},
  };
  EXPECT_EQ(expand(matrix), expected);
}

TEST(Matrix, EmptyMatrixIsOnePoint) {
  EXPECT_EQ(expand({}), std::vector<Axes>{Axes{}});
  EXPECT_EQ(cell_id("plain", {}), "plain");
}

TEST(Matrix, FirstAxisVariesSlowest) {
  const std::vector<Axes> points = expand(kFruit);
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(cell_id("s", points[0]), "s/fruit=apple,animal=cat");
  EXPECT_EQ(cell_id("s", points[1]), "s/fruit=apple,animal=dog");
  EXPECT_EQ(cell_id("s", points[3]), "s/fruit=pear,animal=dog");
}

TEST(Matrix, ExcludeMatchesPartOfAPoint) {
  Matrix matrix = kFruit;
  matrix.exclude = {{{"animal", "dog"}}, {{"fruit", "pear"}, {"animal", "cat"}}};
  EXPECT_EQ(expand(matrix), (std::vector<Axes>{{{"fruit", "apple"}, {"animal", "cat"}}}));
}

TEST(Matrix, IncludeIsAppliedAfterExcludeAndCanRestoreAPoint) {
  Matrix matrix = kFruit;
  matrix.exclude = {{{"fruit", "pear"}}};
  matrix.include = {{{"fruit", "pear"}, {"animal", "dog"}}};
  EXPECT_EQ(expand(matrix).size(), 3u);
  EXPECT_EQ(cell_id("s", expand(matrix).back()), "s/fruit=pear,animal=dog");
}

TEST(Matrix, EveryIncludeWithoutAxesIsAPoint) {
  Matrix matrix;
  matrix.include = {{{"site", "a"}, {"zone", "b"}}, {{"site", "c"}}};
  EXPECT_EQ(expand(matrix).size(), 2u);
}

TEST(Matrix, EverythingExcludedLeavesNothing) {
  Matrix matrix = kFruit;
  matrix.exclude = {{{"animal", "dog"}}, {{"animal", "cat"}}};
  EXPECT_TRUE(expand(matrix).empty());
}

TEST(Matrix, IncludeThatStartsWithANewAxisKeepsDeclaredOrder) {
  Matrix matrix = kFruit;
  matrix.include = {{{"color", "red"}, {"fruit", "apple"}, {"animal", "cat"}}, {{"color", "blue"}, {"fruit", "fig"}}};
  EXPECT_EQ(cell_id("s", expand(matrix).front()), "s/fruit=apple,animal=cat,color=red");
  EXPECT_EQ(cell_id("s", expand(matrix).back()), "s/fruit=fig,color=blue");
}

TEST(Matrix, ValuesOfAnAxisContainThoseOfInclude) {
  Matrix matrix = kFruit;
  matrix.include = {{{"fruit", "fig"}, {"color", "red"}}};
  EXPECT_EQ(matrix.values_of("fruit"), (std::vector<std::string>{"apple", "pear", "fig"}));
  EXPECT_EQ(matrix.values_of("color"), (std::vector<std::string>{"red"}));
  EXPECT_EQ(matrix.axis_names(), (std::vector<std::string>{"fruit", "animal", "color"}));
}

}  // namespace
}  // namespace fp8lab
