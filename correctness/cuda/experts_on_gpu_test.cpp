#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "ops/experts/routing.h"
#include "support/both_devices.h"
#include "support/error_of.h"

// Every kernel of a mixture of experts on the GPU equals the host's in every byte: over types, strides, rows that end
// inside a wide load, ties, experts that all tokens choose and experts that none does.
namespace fp8lab {
namespace {

using support::BothDevices;
using support::kLayouts;
using support::Layout;
using support::Matrix;

constexpr DType kReal[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

/// Which experts tokens choose.
enum class Choice { kSpread, kOne, kEven };
constexpr Choice kEveryChoice[] = {Choice::kSpread, Choice::kOne, Choice::kEven};

std::int32_t chosen_expert(Choice choice, std::int64_t token, std::int64_t k, std::int64_t experts) {
  const auto draw = static_cast<std::int64_t>(reference::scramble(static_cast<std::uint64_t>(token)) >> 33);
  const std::int64_t spread = (draw + k * (1 + draw % 3)) % experts;
  switch (choice) {
    case Choice::kSpread: return static_cast<std::int32_t>(spread);
    case Choice::kOne: return static_cast<std::int32_t>(experts / 2);
    default: return static_cast<std::int32_t>(spread / 2 * 2);
  }
}

/// Tensors on both devices.
using Both = std::array<Tensor, BothDevices::kSides>;
using BothGroups = std::array<GroupedRows, BothDevices::kSides>;

class ExpertsOnGpu : public ::testing::Test {
 protected:
  Matrix matrix(DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::kContiguous) {
    return Matrix(both_, dtype, rows, cols, layout);
  }
  Both make_bytes(const TensorSpec& spec, std::span<const std::byte> bytes) {
    Both out;
    for (std::size_t side = 0; side < out.size(); ++side) {
      out[side] = both_[side].allocate(spec, support::anyone(both_[side]));
      both_[side].write_bytes(out[side], bytes);
    }
    return out;
  }
  Both make(const Shape& shape, const std::vector<float>& values) {
    return make_bytes({shape, DType::kF32}, std::as_bytes(std::span(values)));
  }
  Both choices(Choice choice, std::int64_t tokens, std::int64_t of_each, std::int64_t experts) {
    std::vector<std::int32_t> numbers;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < of_each; ++k) numbers.push_back(chosen_expert(choice, t, k, experts));
    return make_bytes({Shape{tokens, of_each}, DType::kI32}, std::as_bytes(std::span(numbers)));
  }
  BothGroups group(const Both& chosen, std::int64_t experts, std::int64_t multiple) {
    BothGroups out;
    for (std::size_t side = 0; side < out.size(); ++side)
      out[side] = group_rows(both_[side], chosen[side], experts, multiple, support::anyone(both_[side]));
    return out;
  }
  bool same_bytes(const Tensor& host, const Tensor& gpu) {
    return both_[0].read_bytes(host) == both_[1].read_bytes(gpu);
  }
  BothDevices both_;
};

struct Sizes {
  std::int64_t tokens, experts, choices;
};
// One expert; fewer experts than a warp has lanes and more; every number of choices up to 8; all experts chosen.
constexpr Sizes kSizes[] = {{1, 1, 1},     {5, 2, 2},   {33, 8, 2},  {100, 8, 1}, {257, 60, 8},
                            {64, 128, 7},  {9, 33, 3},  {65, 40, 4}, {31, 64, 5}, {12, 256, 6},
                            {19, 4096, 8}, {3, 40, 40}, {8192, 8, 2}};

TEST_F(ExpertsOnGpu, RoutesAndTheirGradientsHaveTheSameBits) {
  for (const Sizes& s : kSizes)
    for (const Layout layout : kLayouts) {
      const std::string what =
          fmt::format("{} tokens, {} of {}, layout {}", s.tokens, s.choices, s.experts, static_cast<int>(layout));
      const Matrix logits = matrix(DType::kF32, s.tokens, s.experts, layout).gaussian(1);
      const Matrix experts = matrix(DType::kI32, s.tokens, s.choices, layout).scrambled(2);
      const Matrix weights = matrix(DType::kF32, s.tokens, s.choices, layout).scrambled(3);
      both_.launch(&KernelTable::route, [&](std::size_t side) {
        return RouteArgs{.logits = logits[side], .experts = experts[side], .weights = weights[side]};
      });
      EXPECT_EQ(experts.difference(), "") << what;
      EXPECT_EQ(weights.difference(), "") << what;
      const Matrix grad_weights = matrix(DType::kF32, s.tokens, s.choices, layout).gaussian(4);
      const Matrix counts = matrix(DType::kF32, 1, s.experts).gaussian(6);
      for (const DType dtype : kReal) {
        const Matrix grad_logits = matrix(dtype, s.tokens, s.experts, layout).scrambled(5);
        both_.launch(&KernelTable::route_backward, [&](std::size_t side) {
          return RouteBackwardArgs{.experts = experts[side],
                                   .weights = weights[side],
                                   .grad_weights = grad_weights[side],
                                   .grad_logits = grad_logits[side]};
        });
        EXPECT_EQ(grad_logits.difference(), "") << what << ", gradient " << name(dtype);
        for (const bool sigmoid : {false, true}) {
          both_.launch(&KernelTable::route_backward, [&](std::size_t side) {
            return RouteBackwardArgs{.experts = experts[side],
                                     .weights = weights[side],
                                     .grad_weights = grad_weights[side],
                                     .grad_logits = grad_logits[side],
                                     .logits = logits[side],
                                     .counts = counts[side],
                                     .aux = 0.25f,
                                     .sigmoid = sigmoid};
          });
          EXPECT_EQ(grad_logits.difference(), "") << what << ", with auxiliary loss, gradient " << name(dtype);
        }
      }
    }
}

/// Biases of the choice, and groups.
struct Choosing {
  bool has_biases;
  std::int64_t groups, top_groups;
};

// Sigmoids with and without biases and groups. Groups have two experts or more, also more than a warp has threads.
TEST_F(ExpertsOnGpu, RoutesBySigmoidsAndTheirGradientsHaveTheSameBits) {
  constexpr Choosing kEvery[] = {{false, 1, 1}, {true, 1, 1}, {true, 4, 2}, {false, 8, 7}, {true, 32, 5}, {true, 2, 1}};
  for (const Sizes& s : {Sizes{1, 64, 6}, Sizes{33, 64, 8}, Sizes{257, 256, 8}, Sizes{100, 96, 3}, Sizes{5, 4096, 8}})
    for (const Choosing& choosing : kEvery)
      for (const Layout layout : kLayouts) {
        const std::string what = fmt::format("{} tokens, {} of {}, {} of {} groups, {} biases, layout {}", s.tokens,
                                             s.choices, s.experts, choosing.top_groups, choosing.groups,
                                             choosing.has_biases ? "with" : "without", static_cast<int>(layout));
        const Matrix logits = matrix(DType::kF32, s.tokens, s.experts, layout).gaussian(1);
        const Matrix experts = matrix(DType::kI32, s.tokens, s.choices, layout).scrambled(2);
        const Matrix weights = matrix(DType::kF32, s.tokens, s.choices, layout).scrambled(3);
        const Matrix slopes = matrix(DType::kF32, s.tokens, s.choices, layout).scrambled(4);
        const Matrix biases = matrix(DType::kF32, 1, s.experts).gaussian(5);
        const Both counts = make({s.experts}, std::vector<float>(static_cast<std::size_t>(s.experts), 3.0f));
        both_.launch(&KernelTable::route, [&](std::size_t side) {
          return RouteArgs{.logits = logits[side],
                           .experts = experts[side],
                           .weights = weights[side],
                           .sigmoid = true,
                           .scale = 2.5f,
                           .slopes = slopes[side],
                           .biases = choosing.has_biases ? biases[side] : MatrixView{},
                           .groups = choosing.groups,
                           .top_groups = choosing.top_groups,
                           .counts = counts[side].view()};
        });
        EXPECT_EQ(experts.difference(), "") << what;
        EXPECT_EQ(weights.difference(), "") << what;
        EXPECT_EQ(slopes.difference(), "") << what;
        EXPECT_TRUE(same_bytes(counts[0], counts[1])) << what;
        const Matrix grad_weights = matrix(DType::kF32, s.tokens, s.choices, layout).gaussian(6);
        const Matrix grad_logits = matrix(DType::kBF16, s.tokens, s.experts, layout).scrambled(7);
        both_.launch(&KernelTable::route_backward, [&](std::size_t side) {
          return RouteBackwardArgs{.experts = experts[side],
                                   .weights = weights[side],
                                   .slopes = slopes[side],
                                   .scale = 2.5f,
                                   .grad_weights = grad_weights[side],
                                   .grad_logits = grad_logits[side]};
        });
        EXPECT_EQ(grad_logits.difference(), "") << what;
      }
}

TEST_F(ExpertsOnGpu, SoftmaxWeightsWithAScaleHaveTheSameBits) {
  const Both logits = make({65, 40}, reference::gaussian_values(65 * 40, 8));
  std::array<Routing, BothDevices::kSides> routing;
  for (std::size_t side = 0; side < routing.size(); ++side)
    routing[side] = route(both_[side], logits[side], {.choices = 4, .scale = 0.7f}, support::anyone(both_[side]));
  EXPECT_TRUE(same_bytes(routing[0].weights, routing[1].weights));
}

// Fewer experts than the block has threads, and more; counts above and below the mean, and equal to it.
TEST_F(ExpertsOnGpu, BiasesMoveAlike) {
  for (const std::int64_t experts : {1, 2, 60, 256, 4096}) {
    std::vector<float> numbers;
    for (std::int64_t e = 0; e < experts; ++e)
      numbers.push_back(static_cast<float>(reference::scramble(static_cast<std::uint64_t>(e / 2)) >> 54));
    const Both counts = make({experts}, numbers), biases = make({experts}, reference::gaussian_values(experts, 9));
    for (std::size_t side = 0; side < counts.size(); ++side)
      balance_experts(both_[side], {.biases = biases[side], .counts = counts[side]}, 0.001f);
    EXPECT_TRUE(same_bytes(biases[0], biases[1])) << experts;
    EXPECT_TRUE(same_bytes(counts[0], counts[1])) << experts;
  }
}

// Logits of five different values, so that most choices are ties; and rows with NaN, infinities and both zeros.
TEST_F(ExpertsOnGpu, TiesAndNaNAreOrderedAlike) {
  const float special[] = {0.0f, -0.0f, kNaN, -kNaN, kInfinity, -kInfinity, 1.0f, -1.0f, 1e-40f, -1e-40f};
  for (const Sizes& s : kSizes)
    for (const auto& [ties, groups] : {std::pair{true, 1}, {false, 1}, {true, 4}, {false, 4}}) {
      const bool has_groups = groups > 1 && s.experts % groups == 0 && s.experts / groups > 1;
      if (groups > 1 && (!has_groups || s.experts * 3 / 4 < s.choices)) continue;
      const RouterRule rule{.choices = s.choices,
                            .sigmoid = has_groups,
                            .groups = has_groups ? groups : 1,
                            .top_groups = has_groups ? 3 : 1};
      std::vector<float> logits;
      for (std::int64_t i = 0; i < s.tokens * s.experts; ++i) {
        const std::uint64_t draw = reference::scramble(static_cast<std::uint64_t>(i)) >> 20;
        logits.push_back(ties ? 0.5f * static_cast<float>(draw % 5) - 1.0f : special[draw % std::size(special)]);
      }
      const Both on_both = make({s.tokens, s.experts}, logits);
      std::array<Routing, BothDevices::kSides> routing;
      for (std::size_t side = 0; side < routing.size(); ++side)
        routing[side] = route(both_[side], on_both[side], rule, support::anyone(both_[side]));
      const std::string what = fmt::format("{} tokens, {} of {}, {} groups, {}", s.tokens, s.choices, s.experts,
                                           rule.groups, ties ? "ties" : "special values");
      EXPECT_TRUE(same_bytes(routing[0].experts, routing[1].experts)) << what;
      // NaNs made by a processor and by a GPU differ in their bits.
      const std::vector<float> host = both_[0].read(routing[0].weights), gpu = both_[1].read(routing[1].weights);
      ASSERT_EQ(host.size(), gpu.size());
      for (std::size_t i = 0; i < host.size(); ++i) {
        const bool same = host[i] != host[i]
                              ? gpu[i] != gpu[i]
                              : std::bit_cast<std::uint32_t>(host[i]) == std::bit_cast<std::uint32_t>(gpu[i]);
        ASSERT_TRUE(same) << what << ": weight " << i << " is " << gpu[i] << ", on the host " << host[i];
      }
    }
}

struct GroupSizes {
  std::int64_t tokens, choices, experts, multiple;
};
// No token; one part of choices, several parts, the most parts with many steps each; more experts than choices; more
// experts than a block has threads.
TEST_F(ExpertsOnGpu, RowsAreGroupedInTheSameOrder) {
  for (const GroupSizes& s :
       {GroupSizes{0, 2, 4, 16}, GroupSizes{1, 1, 1, 1}, GroupSizes{7, 2, 3, 4}, GroupSizes{31, 1, 5, 1},
        GroupSizes{129, 3, 8, 16}, GroupSizes{1000, 2, 8, 128}, GroupSizes{513, 8, 64, 32}, GroupSizes{50, 2, 4096, 16},
        GroupSizes{3000, 1, 4096, 1}, GroupSizes{9000, 4, 1500, 128}, GroupSizes{8192, 2, 8, 16},
        GroupSizes{300001, 8, 60, 16}, GroupSizes{400, 6, 12288, 1}})
    for (const Choice choice : kEveryChoice) {
      const BothGroups groups = group(choices(choice, s.tokens, s.choices, s.experts), s.experts, s.multiple);
      const std::string what = fmt::format("{} tokens x {}, {} experts, multiple {}, choice {}", s.tokens, s.choices,
                                           s.experts, s.multiple, static_cast<int>(choice));
      EXPECT_TRUE(same_bytes(groups[0].begins, groups[1].begins)) << "begins of " << what;
      EXPECT_TRUE(same_bytes(groups[0].rows, groups[1].rows)) << "rows of " << what;
      EXPECT_TRUE(same_bytes(groups[0].sources, groups[1].sources)) << "sources of " << what;
    }
}

TEST_F(ExpertsOnGpu, MoreExpertsThanSharedMemoryHoldsAreRefused) {
  const Tensor experts = both_[1].allocate({Shape{4, 1}, DType::kI32}, support::anyone(both_[1]));
  const std::string error =
      support::error_of([&] { group_rows(both_[1], experts, 12289, 1, support::anyone(both_[1])); });
  EXPECT_NE(error.find("12288 experts at most"), std::string::npos) << error;
}

struct RowSizes {
  std::int64_t tokens, choices, experts, multiple, cols;
};
// One column, less than a run, odd lengths, rows of several steps of a block, and a model's.
constexpr RowSizes kRowSizes[] = {{1, 1, 1, 1, 1},     {5, 2, 3, 4, 5},      {67, 2, 8, 16, 64},
                                  {40, 3, 5, 1, 264},  {33, 8, 16, 32, 72},  {13, 2, 4, 16, 2057},
                                  {9, 4, 4, 1, 14336}, {20, 1, 40, 16, 4096}};

TEST_F(ExpertsOnGpu, RowsMoveWithTheirBits) {
  for (const RowSizes& s : kRowSizes)
    for (const Choice choice : kEveryChoice) {
      const BothGroups groups = group(choices(choice, s.tokens, s.choices, s.experts), s.experts, s.multiple);
      const std::int64_t rows = groups[0].sources.numel();
      const Both weights = make({s.tokens, s.choices}, reference::gaussian_values(s.tokens * s.choices, 1));
      for (const DType dtype : kReal)
        for (const Layout layout : kLayouts) {
          const std::string what = fmt::format("{} tokens x {}, {} {}, layout {}, choice {}", s.tokens, s.choices,
                                               name(dtype), s.cols, static_cast<int>(layout), static_cast<int>(choice));
          const Matrix bits = matrix(dtype, s.tokens, s.cols, layout).scrambled(2);
          const Matrix values = matrix(dtype, s.tokens, s.cols, layout).gaussian(3);
          const Matrix out = matrix(dtype, rows, s.cols, layout).scrambled(4);
          for (const bool weighted : {false, true}) {
            both_.launch(&KernelTable::permute, [&](std::size_t side) {
              return PermuteArgs{.in = weighted ? values[side] : bits[side],
                                 .sources = groups[side].sources.view(),
                                 .choices = s.choices,
                                 .weights = weighted ? weights[side].view() : MatrixView{},
                                 .out = out[side]};
            });
            EXPECT_EQ(out.difference(), "") << (weighted ? "weighted " : "") << what;
          }
        }
    }
}

// As bytes, which may be the bits of numbers that are none; to rows of any strides, as scales have them.
TEST_F(ExpertsOnGpu, RowsInEightBitsAndTheirScalesMoveAsTheyAre) {
  for (const RowSizes& s : kRowSizes) {
    const BothGroups groups = group(choices(kEveryChoice[0], s.tokens, s.choices, s.experts), s.experts, s.multiple);
    const std::int64_t rows = groups[0].sources.numel();
    for (const DType dtype : {DType::kE4M3, DType::kE5M2, DType::kE8M0, DType::kF32, DType::kI64})
      for (const Layout layout : kLayouts)
        for (const bool by_columns : {false, true}) {
          const Matrix in = matrix(dtype, s.tokens, s.cols, layout).scrambled(3);
          const Matrix out = by_columns ? matrix(dtype, s.cols, rows, layout).scrambled(4)
                                        : matrix(dtype, rows, s.cols, layout).scrambled(4);
          both_.launch(&KernelTable::permute, [&](std::size_t side) {
            return PermuteArgs{.in = in[side],
                               .sources = groups[side].sources.view(),
                               .choices = s.choices,
                               .weights = {},
                               .out = by_columns ? out[side].transposed() : out[side]};
          });
          EXPECT_EQ(out.difference(), "") << name(dtype) << ' ' << s.cols << ", layout " << static_cast<int>(layout);
        }
  }
}

TEST_F(ExpertsOnGpu, SumsOfChoicesHaveTheSameBits) {
  for (const RowSizes& s : kRowSizes)
    for (const Choice choice : kEveryChoice) {
      const BothGroups groups = group(choices(choice, s.tokens, s.choices, s.experts), s.experts, s.multiple);
      const std::int64_t rows = groups[0].sources.numel();
      const Both weights = make({s.tokens, s.choices}, reference::gaussian_values(s.tokens * s.choices, 1));
      for (const DType dtype : kReal)
        for (const Layout layout : kLayouts) {
          const std::string what = fmt::format("{} tokens x {}, {} {}, layout {}, choice {}", s.tokens, s.choices,
                                               name(dtype), s.cols, static_cast<int>(layout), static_cast<int>(choice));
          const Matrix in = matrix(dtype, rows, s.cols, layout).gaussian(2);
          const Matrix out = matrix(dtype, s.tokens, s.cols, layout).scrambled(3);
          for (const bool weighted : {false, true}) {
            both_.launch(&KernelTable::unpermute, [&](std::size_t side) {
              return UnpermuteArgs{.in = in[side],
                                   .rows = groups[side].rows.view(),
                                   .weights = weighted ? weights[side].view() : MatrixView{},
                                   .out = out[side]};
            });
            EXPECT_EQ(out.difference(), "") << (weighted ? "weighted " : "") << what;
          }
          for (const DType other : {dtype, DType::kF32}) {
            const Matrix grad_out = matrix(other, s.tokens, s.cols, layout).gaussian(4);
            const Matrix grad_weights = matrix(DType::kF32, s.tokens, s.choices, layout).scrambled(5);
            both_.launch(&KernelTable::unpermute_weights, [&](std::size_t side) {
              return UnpermuteWeightsArgs{.in = in[side],
                                          .rows = groups[side].rows.view(),
                                          .grad_out = grad_out[side],
                                          .grad_weights = grad_weights[side]};
            });
            EXPECT_EQ(grad_weights.difference(), "") << "gradient of weights from " << name(other) << ", " << what;
          }
        }
    }
}

}  // namespace
}  // namespace fp8lab
