#include <fmt/core.h>
#include <gtest/gtest.h>

#include "support/both_devices.h"

// Embeddings and cross-entropy of the GPU equal the host's in every byte: over types, strides, rows of odd lengths, one
// token that has many parts of rows and others that have one row or none.
namespace fp8lab {
namespace {

using support::BothDevices;
using support::kLayouts;
using support::Layout;
using support::Matrix;

constexpr DType kModelTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class LanguageOnGpu : public ::testing::Test {
 protected:
  Matrix matrix(DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::kContiguous) {
    return Matrix(both_, dtype, rows, cols, layout);
  }
  /// Half of the tokens are token 1; the last of the vocabulary never occurs.
  std::array<Tensor, BothDevices::kSides> tokens(std::int64_t count, std::int64_t vocabulary) {
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < count; ++i) {
      const double at = reference::uniform(7, static_cast<std::uint64_t>(i));
      const double other = (2.0 * at - 1.0) * static_cast<double>(vocabulary - 1);
      values.push_back(vocabulary < 3 ? 0 : at < 0.5 ? 1 : static_cast<std::int32_t>(other));
    }
    std::array<Tensor, BothDevices::kSides> out;
    for (std::size_t side = 0; side < out.size(); ++side) {
      out[side] = both_[side].allocate({Shape{count, 1}, DType::kI32}, support::anyone(both_[side]));
      both_[side].write_bytes(out[side], std::as_bytes(std::span(values)));
    }
    return out;
  }
  BothDevices both_;
};

struct Sizes {
  std::int64_t seq, batch, vocabulary, cols;
};

TEST_F(LanguageOnGpu, EmbeddingsHaveTheSameBits) {
  for (const Sizes& s : {Sizes{3, 2, 5, 7}, Sizes{40, 3, 65, 16}, Sizes{700, 12, 65, 384}, Sizes{64, 1, 5000, 2056},
                         Sizes{9, 2, 12, 4099}})
    for (const DType dtype : kModelTypes)
      for (const Layout layout : {Layout::kContiguous, Layout::kPadded, Layout::kOdd, Layout::kStrided}) {
        const std::string what = fmt::format("{} x {} of {}, {} {}, layout {}", s.seq, s.batch, s.vocabulary,
                                             name(dtype), s.cols, static_cast<int>(layout));
        const std::int64_t rows = s.seq * s.batch;
        const auto ids = tokens(rows, s.vocabulary);
        const Matrix table = matrix(dtype, s.vocabulary, s.cols, layout).gaussian(1),
                     positions = matrix(dtype, s.seq, s.cols, layout).gaussian(2);
        const Matrix out = matrix(dtype, rows, s.cols, layout).scrambled(3);
        for (const bool positioned : {false, true}) {
          both_.launch(&KernelTable::embedding_forward, [&](std::size_t side) {
            return EmbeddingForwardArgs{.tokens = ids[side].view(),
                                        .table = table[side],
                                        .scale = positioned ? 1.0f : 45.25f,
                                        .positions = positioned ? positions[side] : MatrixView{},
                                        .batch = s.batch,
                                        .out = out[side]};
          });
          EXPECT_EQ(out.difference(), "") << "forward " << what;
        }
        const Matrix grad = matrix(dtype, rows, s.cols, layout).gaussian(4);
        for (const bool accumulate : {false, true}) {
          both_.launch(&KernelTable::embedding_backward, [&](std::size_t side) {
            return EmbeddingBackwardArgs{.scale = 45.25f,
                                         .grad_out = grad[side],
                                         .tokens = ids[side].view(),
                                         .batch = s.batch,
                                         .grad_table = table[side],
                                         .accumulate = accumulate};
          });
          EXPECT_EQ(table.difference(), "") << "tokens, accumulate " << accumulate << ": " << what;
          both_.launch(&KernelTable::embedding_backward, [&](std::size_t side) {
            return EmbeddingBackwardArgs{.grad_out = grad[side],
                                         .tokens = {},
                                         .batch = s.batch,
                                         .grad_table = positions[side],
                                         .accumulate = accumulate};
          });
          EXPECT_EQ(positions.difference(), "") << "positions, accumulate " << accumulate << ": " << what;
        }
      }
}

// Rows that end inside a run, of less than a block's loads, of several rounds of them, and of a language model's.
TEST_F(LanguageOnGpu, CrossEntropiesHaveTheSameBits) {
  for (const std::int64_t vocabulary : {1, 7, 65, 256, 2048, 2056, 10007, 50257, 128256})
    for (const DType dtype : kModelTypes)
      for (const Layout layout : kLayouts) {
        if (vocabulary > 20000 && layout != Layout::kContiguous && layout != Layout::kPadded) continue;
        const std::string what = fmt::format("{} {}, layout {}", name(dtype), vocabulary, static_cast<int>(layout));
        const std::int64_t rows = vocabulary > 20000 ? 33 : 301;
        const auto targets = tokens(rows, vocabulary);
        const Matrix logits = matrix(dtype, rows, vocabulary, layout).gaussian(1, 3.0f);
        const Matrix losses = matrix(DType::kF32, rows, 1).scrambled(2), log_sums = matrix(DType::kF32, rows, 1);
        const Matrix grad_loss = matrix(DType::kF32, 1, 1).gaussian(3);
        both_.launch(&KernelTable::cross_entropy_forward, [&](std::size_t side) {
          return CrossEntropyForwardArgs{.logits = logits[side],
                                         .targets = targets[side].view(),
                                         .losses = losses[side],
                                         .log_sums = log_sums[side]};
        });
        EXPECT_EQ(losses.difference(), "") << "losses " << what;
        const Matrix other = matrix(dtype, rows, vocabulary, layout).scrambled(4);
        for (const Matrix* grad : {&other, &logits}) {
          both_.launch(&KernelTable::cross_entropy_backward, [&](std::size_t side) {
            return CrossEntropyBackwardArgs{.logits = logits[side],
                                            .targets = targets[side].view(),
                                            .log_sums = log_sums[side],
                                            .grad_loss = grad_loss[side],
                                            .grad_logits = (*grad)[side]};
          });
          EXPECT_EQ(grad->difference(), "") << (grad == &logits ? "in place " : "gradient ") << what;
        }
      }
}

}  // namespace
}  // namespace fp8lab
