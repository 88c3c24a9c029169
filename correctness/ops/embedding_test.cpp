#include "ops/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/expected.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using support::make_tensor;
using support::read;
using Values = std::vector<double>;
using Tokens = std::vector<std::int32_t>;

struct Sizes {
  std::int64_t seq, batch, vocabulary, cols;
};

class EmbeddingTest : public ::testing::TestWithParam<DType> {
 protected:
  Tensor gaussian(const Shape& shape, std::uint64_t seed) {
    return make_tensor(*device_, shape, GetParam(), reference::gaussian_values(shape.numel(), seed));
  }
  Tensor tokens(const Tokens& values, std::int64_t vocabulary) {
    return make_tokens(*device_, values, vocabulary, anyone());
  }
  HolderId anyone() { return support::anyone(*device_); }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

/// Half of the tokens are token 1, so that its rows are many parts; the last two of the vocabulary never occur.
Tokens drawn(const Sizes& sizes) {
  Tokens tokens;
  for (std::int64_t i = 0; i < sizes.seq * sizes.batch; ++i) {
    const double at = reference::uniform(9, static_cast<std::uint64_t>(i));
    tokens.push_back(
        at < 0.5 ? 1 : static_cast<std::int32_t>((2.0 * at - 1.0) * static_cast<double>(sizes.vocabulary - 2)));
  }
  return tokens;
}

constexpr Sizes kSizes[] = {{3, 2, 5, 7}, {40, 3, 65, 16}, {400, 3, 12, 300}, {5, 1, 4000, 2056}};

TEST_P(EmbeddingTest, EachTokenGetsItsRowAndItsPosition) {
  for (const Sizes& s : kSizes) {
    const Tokens ids = drawn(s);
    const Tensor table = gaussian({s.vocabulary, s.cols}, 1), positions = gaussian({s.seq, s.cols}, 2);
    const Values rows = read(*device_, table), offsets = read(*device_, positions);
    for (const bool positioned : {false, true}) {
      const Tensor out = embedding(*device_, {.tokens = tokens(ids, s.vocabulary),
                                              .table = table,
                                              .positions = positioned ? positions : Tensor(),
                                              .batch = s.batch,
                                              .holder = anyone()});
      Expected expected(static_cast<std::size_t>(s.seq * s.batch * s.cols));
      for (std::int64_t i = 0; i < s.seq * s.batch; ++i)
        for (std::int64_t j = 0; j < s.cols; ++j) {
          const auto at = static_cast<std::size_t>(i * s.cols + j);
          expected.value[at] = rows[static_cast<std::size_t>(ids[static_cast<std::size_t>(i)] * s.cols + j)];
          if (!positioned) continue;
          expected.value[at] += offsets[static_cast<std::size_t>(i / s.batch * s.cols + j)];
          expected.error[at] =
              kUnit * std::fabs(expected.value[at]) + reference::rounding_error(GetParam(), expected.value[at]);
        }
      EXPECT_TRUE(all_within(read(*device_, out), expected)) << s.vocabulary << positioned;
      EXPECT_TRUE(refuses_mutations(expected));
    }
  }
}

/// The sums of rows by entry, and how far their sums in FP32 may be off: by the roundings of the order of
/// core/sum_order.h and by half an ulp of the result.
Expected sums_of_rows(const Values& grad, std::int64_t rows, const Sizes& s, std::int64_t entries,
                      const auto& entry_of) {
  Expected expected(static_cast<std::size_t>(entries * s.cols));
  Values magnitude(expected.value.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < s.cols; ++j) {
      const auto at = static_cast<std::size_t>(entry_of(i) * s.cols + j);
      expected.value[at] += grad[static_cast<std::size_t>(i * s.cols + j)];
      magnitude[at] += std::fabs(grad[static_cast<std::size_t>(i * s.cols + j)]);
    }
  const double longest = static_cast<double>(rows) / 256.0 + 8.0 + 16.0 + 16.0;
  for (std::size_t at = 0; at < magnitude.size(); ++at) expected.error[at] = longest * kUnit * magnitude[at];
  return expected;
}

TEST_P(EmbeddingTest, GradientOfARowIsTheSumOverItsTokens) {
  for (const Sizes& s : kSizes) {
    const Tokens ids = drawn(s);
    const std::int64_t rows = s.seq * s.batch;
    const Tensor grad = gaussian({rows, s.cols}, 3), table = gaussian({s.vocabulary, s.cols}, 4);
    const Values before = read(*device_, table);
    const auto token_of = [&](std::int64_t i) { return ids[static_cast<std::size_t>(i)]; };
    Expected expected = sums_of_rows(read(*device_, grad), rows, s, s.vocabulary, token_of);

    const Tensor fresh = device_->allocate(table.spec(), anyone());
    embedding_gradient_into(*device_, {.grad_out = grad, .tokens = tokens(ids, s.vocabulary), .batch = s.batch}, fresh,
                            false);
    EXPECT_TRUE(all_within(read(*device_, fresh), rounded_to(GetParam(), expected)));
    EXPECT_TRUE(refuses_mutations(rounded_to(GetParam(), expected)));

    embedding_gradient_into(*device_, {.grad_out = grad, .tokens = tokens(ids, s.vocabulary), .batch = s.batch}, table,
                            true);
    const Values after = read(*device_, table);
    for (std::size_t at = 0; at < before.size(); ++at) {
      expected.value[at] += before[at];
      expected.error[at] += kUnit * std::fabs(expected.value[at]);
    }
    EXPECT_TRUE(all_within(after, rounded_to(GetParam(), expected)));
    for (std::size_t at = before.size() - static_cast<std::size_t>(2 * s.cols); at < before.size(); ++at)
      EXPECT_EQ(after[at], before[at]) << "a token that does not occur";
  }
}

TEST_P(EmbeddingTest, GradientOfAPositionIsTheSumOverSequences) {
  for (const Sizes& s : kSizes) {
    const Tensor grad = gaussian({s.seq * s.batch, s.cols}, 5);
    const Expected expected = rounded_to(GetParam(), sums_of_rows(read(*device_, grad), s.seq * s.batch, s, s.seq + 1,
                                                                  [&](std::int64_t i) { return i / s.batch; }));
    const Tensor out = device_->allocate({Shape{s.seq + 1, s.cols}, GetParam()}, anyone());
    embedding_gradient_into(*device_, {.grad_out = grad, .tokens = {}, .batch = s.batch}, out, false);
    EXPECT_TRUE(all_within(read(*device_, out), expected)) << "the last position has no tokens";
    EXPECT_TRUE(refuses_mutations(expected));
  }
}

// The order of the sum depends only on the tokens.
TEST_P(EmbeddingTest, TheSameTokensGiveTheSameBits) {
  const Sizes s = kSizes[2];
  const Tensor grad = gaussian({s.seq * s.batch, s.cols}, 6), ids = tokens(drawn(s), s.vocabulary);
  std::vector<std::byte> first;
  for (int run = 0; run < 5; ++run) {
    const Tensor out = device_->allocate({Shape{s.vocabulary, s.cols}, GetParam()}, anyone());
    embedding_gradient_into(*device_, {.grad_out = grad, .tokens = ids, .batch = s.batch}, out, false);
    const std::vector<std::byte> bytes = device_->read_bytes(out);
    if (run == 0) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

TEST_P(EmbeddingTest, RefusalsNameTheArgumentAndTheRule) {
  const Tensor table = gaussian({5, 4}, 1), positions = gaussian({2, 4}, 2), ids = tokens({0, 4, 1, 2, 3, 0}, 5);
  const std::string type(name(GetParam()));
  const auto forward = [&](const Tensor& at, const Tensor& offsets, std::int64_t batch) {
    return support::error_of(
        [&] { embedding(*device_, {.tokens = at, .table = table, .positions = offsets, .batch = batch}); });
  };
  EXPECT_EQ(forward(ids, positions, 2), "embedding: positions is " + type + " [2, 4]; there are 3 positions");
  EXPECT_EQ(forward(ids, {}, 4), "embedding: tokens is i32 [6] with batch 4; they are positions times sequences");
  EXPECT_EQ(forward(table, {}, 1), "embedding: tokens is " + type + " [5, 4]; it must be i32");
  EXPECT_EQ(support::error_of([&] {
              embedding_gradient_into(*device_, {.grad_out = gaussian({6, 3}, 3), .tokens = ids}, table, false);
            }),
            "embedding_gradient_into: grad_out is " + type + " [6, 3] and grad_table is " + type +
                " [5, 4]; both must have the same number of columns");
  EXPECT_EQ(support::error_of([&] { tokens({-1}, 5); }),
            "make_tokens: token 0 is -1; a vocabulary of 5 has the tokens 0 to 4");
}

INSTANTIATE_TEST_SUITE_P(Types, EmbeddingTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace fp8lab
