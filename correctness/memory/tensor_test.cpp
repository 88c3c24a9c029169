#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "memory/heap_source.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  Tensor make(const Shape& shape, DType dtype = DType::kF32) {
    const TensorSpec spec{shape, dtype};
    return Tensor(memory_.allocate(spec.bytes(), memory_.ledger().holder(HolderKind::kWorkspace)), spec);
  }
  Tensor counting(const Shape& shape) {
    Tensor tensor = make(shape);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(i);
    return tensor;
  }
  static float at(const Tensor& tensor, std::int64_t i, std::int64_t j) {
    const MatrixView view = tensor.view();
    return view.as<float>()[i * view.row_stride + j * view.col_stride];
  }
  Memory memory_{std::make_unique<HeapSource>()};
};

TEST_F(TensorTest, IsSeenAsAMatrixOfItsInnermostDimension) {
  const Tensor tensor = counting({2, 3, 4});
  EXPECT_EQ(tensor.rows(), 6);
  EXPECT_EQ(tensor.cols(), 4);
  EXPECT_EQ(at(tensor, 5, 3), 23.0f);
}

TEST_F(TensorTest, NarrowsColumnsAndRowsWithoutCopying) {
  const Tensor tensor = counting({4, 6});
  const Tensor part = tensor.columns(2, 3).row_range(1, 2);
  EXPECT_EQ(part.shape(), (Shape{2, 3}));
  EXPECT_EQ(at(part, 0, 0), 8.0f);
  EXPECT_EQ(at(part, 1, 2), 16.0f);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(part.bytes(), 24);
  EXPECT_TRUE(part.buffer().same_block(tensor.buffer()));
  EXPECT_THROW(tensor.columns(4, 3), Error);
  EXPECT_THROW(tensor.row_range(-1, 1), Error);
}

TEST_F(TensorTest, TransposesWithoutCopying) {
  const Tensor transposed = counting({2, 3}).transposed();
  EXPECT_EQ(transposed.shape(), (Shape{3, 2}));
  EXPECT_EQ(at(transposed, 2, 1), 5.0f);
  EXPECT_EQ(at(transposed.columns(1, 1), 2, 0), 5.0f);
  EXPECT_EQ(at(transposed.row_range(2, 1), 0, 1), 5.0f);
  EXPECT_THROW(transposed.reshaped({6}), Error);
}

TEST_F(TensorTest, ReshapesContiguousTensorsOnly) {
  const Tensor tensor = counting({2, 6});
  EXPECT_EQ(at(tensor.reshaped({3, 4}), 2, 3), 11.0f);
  EXPECT_THROW(tensor.reshaped({5}), Error);
  EXPECT_THROW(tensor.columns(0, 3).reshaped({6}), Error);
}

TEST_F(TensorTest, RefusesABlockThatIsTooSmall) {
  EXPECT_THROW(Tensor(memory_.allocate(8, 0), {Shape{3}, DType::kF32}), Error);
}

struct ScaleCase {
  const char* name;
  QuantFormat format;
  std::int64_t rows, cols;
  Shape shape;
  std::int64_t row_stride, col_stride;
};

QuantFormat blocks(std::int64_t rows, std::int64_t cols, ScaleKind kind) {
  QuantFormat format;
  format.block_rows = rows;
  format.block_cols = cols;
  format.scale = kind;
  return format;
}

TEST(ScaleLayoutTest, FollowsThePaddingRulesOfTheLibraries) {
  const QuantFormat mx = blocks(1, 32, ScaleKind::kE8M0Rceil);
  const QuantFormat row = blocks(1, 128, ScaleKind::kF32);
  const QuantFormat square = blocks(128, 128, ScaleKind::kF32);
  const ScaleCase cases[] = {
      {"tensor", QuantFormat{}, 100, 200, {1}, 0, 0}, {"mx padded to 128 x 4", mx, 130, 96, {256, 4}, 4, 1},
      {"mx exact", mx, 128, 128, {128, 4}, 4, 1},     {"1x128, rows contiguous", row, 5, 300, {3, 8}, 1, 8},
      {"128x128", square, 300, 600, {3, 8}, 8, 1},    {"empty", mx, 0, 0, {0, 0}, 0, 1},
  };
  for (const ScaleCase& c : cases) {
    const ScaleLayout layout = scale_layout(c.format, c.rows, c.cols);
    EXPECT_EQ(layout.spec.shape, c.shape) << c.name << " " << to_string(layout.spec.shape);
    EXPECT_EQ(layout.row_stride, c.row_stride) << c.name;
    EXPECT_EQ(layout.col_stride, c.col_stride) << c.name;
  }
}

TEST(ScaleLayoutTest, ColumnwiseOrientationsAreTransposedUnlessMicroscaled) {
  const OrientationLayout square = columnwise_layout(blocks(128, 128, ScaleKind::kF32), 300, 600);
  EXPECT_EQ(square.data.shape, (Shape{600, 300}));
  EXPECT_EQ(square.scales.spec.shape, (Shape{5, 4}));
  EXPECT_EQ(square.scales.row_stride, 4);
  const OrientationLayout mx = columnwise_layout(blocks(1, 32, ScaleKind::kE8M0Rceil), 96, 130);
  EXPECT_EQ(mx.data.shape, (Shape{96, 130}));
  EXPECT_EQ(mx.scales.spec.shape, (Shape{4, 256}));
  EXPECT_EQ(mx.scales.row_stride, 1);
  EXPECT_EQ(mx.scales.col_stride, 256);
}

class QuantizedTensorTest : public TensorTest {
 protected:
  QuantizedTensor both_orientations() {
    QuantizedTensor tensor({16, 32}, QuantFormat{});
    tensor.rowwise() = {make({16, 32}, DType::kE4M3), make({1})};
    tensor.columnwise() = {make({32, 16}, DType::kE4M3), tensor.rowwise().scale_inv};
    return tensor;
  }
};

TEST_F(QuantizedTensorTest, CountsASharedScaleOnce) { EXPECT_EQ(both_orientations().bytes(), 512 + 512 + 4); }

TEST_F(QuantizedTensorTest, BecomesAShellAndIsRestored) {
  QuantizedTensor tensor = both_orientations();
  const std::byte* data = tensor.columnwise().data.view().data;
  std::vector<Tensor> buffers = tensor.take_buffers();
  EXPECT_TRUE(tensor.empty());
  EXPECT_EQ(tensor.bytes(), 0);
  EXPECT_EQ(buffers.size(), 4u);
  EXPECT_EQ(tensor.shape(), (Shape{16, 32}));
  tensor.put_buffers(std::move(buffers));
  EXPECT_EQ(tensor.bytes(), 1028);
  EXPECT_EQ(tensor.columnwise().data.view().data, data);
}

TEST_F(QuantizedTensorTest, RestoresOnlyTheBuffersThatWereMovedOut) {
  QuantizedTensor tensor = both_orientations();
  tensor.drop_rowwise();
  std::vector<Tensor> buffers = tensor.take_buffers();
  EXPECT_EQ(buffers.size(), 2u);
  tensor.put_buffers(buffers);
  EXPECT_FALSE(static_cast<bool>(tensor.rowwise()));
  EXPECT_EQ(tensor.bytes(), 516);
  tensor.take_buffers();
  buffers.push_back(buffers.front());
  EXPECT_THROW(tensor.put_buffers(buffers), Error);
}

TEST_F(QuantizedTensorTest, ColumnwiseOperandNeedsColumnwiseDataUnlessTheGpuReadsBoth) {
  QuantizedTensor tensor = both_orientations();
  EXPECT_EQ(tensor.columnwise_operand(false).values.rows, 32);
  tensor.drop_columnwise();
  EXPECT_THROW(tensor.columnwise_operand(false), Error);
  const OperandView view = tensor.columnwise_operand(true);
  EXPECT_EQ(view.values.rows, 32);
  EXPECT_EQ(view.values.col_stride, 32);
  tensor.drop_rowwise();
  EXPECT_THROW(tensor.rowwise_operand(), Error);
}

}  // namespace
}  // namespace fp8lab
