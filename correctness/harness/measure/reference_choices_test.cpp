#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/reference/model.h"

// Which experts the reference step chooses, and when it takes the runtime's choices.
namespace fp8lab {
namespace {

using reference_step::Matrix;
using reference_step::NamedMatrices;

/// Parameters of a mixture, of different values for each expert. Its norm scales by 1.
NamedMatrices parameters_of(const ModelConfig& model) {
  const auto matrix = [](std::int64_t rows, std::int64_t cols) {
    Matrix out(rows, cols);
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = 0.25 * static_cast<double>(i % 7) - 0.5;
    return out;
  };
  NamedMatrices out{{"layers[0].fc1.weight", matrix(model.experts * 2 * model.ffn, model.hidden)},
                    {"layers[0].fc2.weight", matrix(model.experts * model.hidden, model.ffn)},
                    {"layers[0].router.weight", matrix(model.experts, model.hidden)},
                    {"layers[0].norm.gamma", matrix(1, model.hidden)}};
  for (double& value : out.at("layers[0].norm.gamma").values) value = 1.0;
  return out;
}

// Two logits that differ by less than two steps of BF16 in their largest term are nearly tied, and by more they are
// not.
TEST(ReferenceModel, ChoicesOfTheRuntimeAreTakenIfLogitsAreNearlyTied) {
  CellConfig cell;
  cell.model = {.layer = "layernorm_mlp", .form = "llama", .hidden = 2, .ffn = 3, .seq = 1, .experts = 3, .top_k = 1};
  NamedMatrices parameters = parameters_of(cell.model);
  Matrix x(1, 2);
  x.values = {1.0, 1.0};  // normed to itself
  const auto output = [&](double ahead, const std::vector<std::int32_t>& seen) {
    parameters.at("layers[0].router.weight").values = {0.5, 0.5, 0.5 + ahead, 0.5, 0.25, 0.25};
    reference_step::Model model(cell, "bf16", true);
    const reference_step::SeenChoices choices{{"layers[0].router.weight", seen}};
    if (!seen.empty()) model.set_seen_choices(&choices);
    return model.run(x, Matrix(), parameters).output.values;
  };
  constexpr double kLittle = 0x1p-8, kMuch = 0x1p-5;
  const auto second = output(kMuch, {});
  const auto first = output(-kMuch, {});
  EXPECT_NE(first, second);
  EXPECT_EQ(output(kLittle, {}), second);
  EXPECT_EQ(output(kLittle, {1}), second);
  EXPECT_EQ(output(kLittle, {0}), first);
  EXPECT_EQ(output(-kLittle, {1}), second);
  EXPECT_EQ(output(kMuch, {0}), second) << "a choice of a smaller logit is a fault";
  EXPECT_EQ(output(kLittle, {2}), second);
  EXPECT_EQ(output(kLittle, {7}), second);
  EXPECT_EQ(output(kLittle, {0, 1}), second) << "not one choice for each token";
}

// Six experts in three groups. The norm's output is 1 in both columns, so that a logit is the sum of a row.
TEST(ReferenceModel, ChoicesFollowBiasesAndGroups_AndTheRuntimesIfTheyAreNearlyTied) {
  CellConfig cell;
  cell.model = {.layer = "layernorm_mlp", .form = "llama", .hidden = 2, .ffn = 3, .seq = 1, .experts = 6, .top_k = 2};
  cell.model.router = RouterScore::kSigmoid;
  cell.model.expert_groups = 3;
  cell.model.top_groups = 1;
  NamedMatrices parameters = parameters_of(cell.model);
  Matrix x(1, 2);
  x.values = {1.0, 1.0};
  const std::string router = "layers[0].router";
  const auto tokens = [&](double ahead, const std::vector<double>& biases, const std::vector<std::int32_t>& seen) {
    parameters.at(router + ".weight").values = {1.5, 1.5, 0, 0, 0.5, 0.5, 0.5, 0.5, 0.5 + ahead, 0.5, 0.5, 0.5};
    reference_step::Model model(cell, "bf16", true);
    const reference_step::SeenChoices choices{{router + ".weight", seen}};
    const reference_step::ExpertValues of_router{{router, biases}};
    if (!seen.empty()) model.set_seen_choices(&choices);
    if (!biases.empty()) model.set_router_biases(&of_router);
    return model.run(x, Matrix(), parameters).tokens_of_experts.at(router);
  };
  using Tokens = std::vector<double>;
  constexpr double kLittle = 0x1p-8, kMuch = 0x1p-3;
  const Tokens first{1, 1, 0, 0, 0, 0}, second{0, 0, 1, 1, 0, 0}, third{0, 0, 0, 0, 1, 1};
  EXPECT_EQ(tokens(kMuch, {}, {}), third) << "the largest score is in a group with a smaller sum";
  EXPECT_EQ(tokens(-kMuch, {}, {}), second);
  EXPECT_EQ(tokens(kMuch, {0, 0.5, 0, 0, 0, 0}, {}), first);
  EXPECT_EQ(tokens(kMuch, {0, 0, 0.05, 0, 0, 0}, {}), second);
  EXPECT_EQ(tokens(kLittle, {}, {2, 3}), second) << "nearly tied groups";
  EXPECT_EQ(tokens(kMuch, {}, {2, 3}), third) << "a choice of a group with a smaller sum is a fault";
  EXPECT_EQ(tokens(kLittle, {}, {2, 5}), third) << "experts of more groups than can be chosen";
}

}  // namespace
}  // namespace fp8lab
