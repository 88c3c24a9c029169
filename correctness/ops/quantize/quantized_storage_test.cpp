#include "ops/quantized_storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/compare.h"
#include "support/quantize.h"

// Shards, copies and views compared with the full array, for every format, bit for bit.
namespace fp8lab {
namespace {

using support::bytes_of;
using support::NamedFormat;
using Bytes = std::vector<std::uint8_t>;
using Offsets = std::vector<std::int64_t>;

constexpr std::int64_t kCols[] = {1, 32, 160};
const Offsets kOffsets[] = {{0, 0},
                            {0, 64},
                            {0, 32, 64},
                            {0, 0, 64, 64},
                            {0, 96, 96, 128},
                            {0, 128, 256},
                            {0, 128, 128, 384},
                            {0, 7, 7, 20, 33},
                            {0, 1, 2, 3},
                            {0, 160, 192, 288},
                            {0, 128, 200}};
struct NamedOrientations {
  const char* name;
  Orientations orientations;
};
constexpr NamedOrientations kOrientations[] = {
    {"both", {true, true}}, {"row-wise", {true, false}}, {"column-wise", {false, true}}};

Behaviors reverted(bool Behaviors::* decision) {
  Behaviors behaviors;
  behaviors.*decision = false;
  return behaviors;
}

class QuantizedStorage : public ::testing::TestWithParam<NamedFormat> {
 protected:
  const QuantFormat& format() const { return GetParam().format; }
  HolderId anyone() { return support::anyone(*device_); }
  Tensor values(std::int64_t rows, std::int64_t cols) {
    return support::make_tensor(*device_, {rows, cols}, DType::kBF16, support::varied_values(rows * cols, 29));
  }
  QuantizedTensor quantized(const Tensor& x, Orientations orientations = {true, true}) {
    return support::quantized(*device_, x, format(), {.orientations = orientations});
  }
  /// The tensor's bytes, whatever strides it has.
  Bytes bytes(const Tensor& tensor) {
    const Tensor plain = device_->allocate({Shape{tensor.rows(), tensor.cols()}, tensor.dtype()}, anyone());
    copy_into(*device_, tensor.shape().rank() == 2 ? tensor : tensor.reshaped(plain.shape()), plain);
    return bytes_of(*device_, plain);
  }
  ::testing::AssertionResult orientation_equals(const QuantizedOrientation& actual,
                                                const QuantizedOrientation& expected) {
    if (static_cast<bool>(actual) != static_cast<bool>(expected))
      return ::testing::AssertionFailure() << (actual ? "an orientation too many" : "an orientation is missing");
    if (!actual) return ::testing::AssertionSuccess();
    if (auto data = reference::bitwise_equal(bytes(actual.data), bytes(expected.data)); !data)
      return data << " (quantized data)";
    return reference::bitwise_equal(bytes(actual.scale_inv), bytes(expected.scale_inv)) << " (scales)";
  }
  ::testing::AssertionResult equals(const QuantizedTensor& actual, const QuantizedTensor& expected) {
    if (actual.rows() != expected.rows() || actual.cols() != expected.cols())
      return ::testing::AssertionFailure() << "shape";
    if (auto rowwise = orientation_equals(actual.rowwise(), expected.rowwise()); !rowwise)
      return rowwise << " row-wise";
    return orientation_equals(actual.columnwise(), expected.columnwise()) << " column-wise";
  }
  /// The expected shard: its rows quantized by themselves, under the full array's scale if there is one.
  QuantizedTensor shard_of(const Tensor& x, std::int64_t begin, std::int64_t count, Orientations orientations) {
    const Tensor rows = x.row_range(begin, count);
    if (!format().per_tensor()) return quantized(rows, orientations);
    QuantFormat fixed = format();
    fixed.amax_source = AmaxSource::kHistory;
    QuantizedTensor part =
        support::quantized(*device_, rows, fixed, {.orientations = orientations, .history_scale = *exact_scale_});
    QuantizedTensor result({count, x.cols()}, format());
    result.rowwise() = part.rowwise();
    result.columnwise() = part.columnwise();
    return result;
  }
  void use_scale_of(const Tensor& x) {
    exact_scale_ = support::expected_scale(support::matrix_of(*device_, x), format());
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  std::optional<float> exact_scale_;
};

// Shards equal quantizing their rows, and gathered they equal the full array.
TEST_P(QuantizedStorage, ShardsEqualTheirQuantizedRowsAndGatherToTheFullTensor) {
  int cut = 0;
  for (const Offsets& offsets : kOffsets)
    for (const std::int64_t cols : kCols)
      for (const NamedOrientations& orientations : kOrientations) {
        const std::int64_t rows = offsets.back();
        if (!shard_refusal(format(), rows, cols, offsets).empty()) continue;
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " in " << offsets.size() - 1 << ", "
                                        << orientations.name);
        const Tensor x = values(rows, cols);
        if (format().per_tensor()) use_scale_of(x);
        const QuantizedTensor full = quantized(x, orientations.orientations);
        const std::vector<QuantizedTensor> shards = split_rows(*device_, {}, full, offsets, {.holder = anyone()});
        ASSERT_EQ(shards.size(), offsets.size() - 1);
        Bytes rowwise_data, rowwise_scales, columnwise_data, columnwise_scales;
        for (std::size_t i = 0; i < shards.size(); ++i) {
          const std::int64_t count = offsets[i + 1] - offsets[i];
          ASSERT_TRUE(equals(shards[i], shard_of(x, offsets[i], count, orientations.orientations))) << "shard " << i;
          ++cut;
          // Scales are gathered without the padding after the last row of blocks.
          const auto gather = [&](const QuantizedOrientation& orientation, std::int64_t block, Bytes& data,
                                  Bytes& scales) {
            const Bytes more_data = bytes(orientation.data);
            data.insert(data.end(), more_data.begin(), more_data.end());
            if (format().per_tensor()) return;
            const Bytes more_scales = bytes(orientation.scale_inv.row_range(0, ceil_div(count, block)));
            scales.insert(scales.end(), more_scales.begin(), more_scales.end());
          };
          const bool by_rows = format().per_tensor() || format().block_rows != 1 || format().block_cols == 32;
          if (orientations.orientations.rowwise && by_rows)
            gather(shards[i].rowwise(), format().block_rows, rowwise_data, rowwise_scales);
          if (orientations.orientations.columnwise && !format().columnwise_stored_transposed())
            gather(shards[i].columnwise(), format().block_cols, columnwise_data, columnwise_scales);
        }
        const auto expect_gathered = [&](const QuantizedOrientation& orientation, const Bytes& data, Bytes scales) {
          ASSERT_TRUE(reference::bitwise_equal(data, bytes(orientation.data)));
          if (format().per_tensor()) return;
          const Bytes stored = bytes(orientation.scale_inv);
          ASSERT_LE(scales.size(), stored.size());
          scales.resize(stored.size(), 0);  // padding is zero
          ASSERT_TRUE(reference::bitwise_equal(scales, stored));
        };
        if (!rowwise_data.empty()) expect_gathered(full.rowwise(), rowwise_data, rowwise_scales);
        if (!columnwise_data.empty()) expect_gathered(full.columnwise(), columnwise_data, columnwise_scales);
      }
  EXPECT_GT(cut, 20);
}

TEST_P(QuantizedStorage, RefusesShardsThatWouldShareABlock) {
  const std::int64_t multiple = format().per_tensor() ? 1 : format().block_cols;
  for (const Offsets& fine : {Offsets{0, 2 * multiple, 2 * multiple, 3 * multiple}, Offsets{0, multiple, multiple + 1}})
    EXPECT_EQ(shard_refusal(format(), fine.back(), 64, fine), "");
  for (const Offsets& wrong : {Offsets{0}, Offsets{}, Offsets{1, 3}, Offsets{0, 2}, Offsets{0, 4, 2, 3}})
    EXPECT_NE(shard_refusal(format(), 3, 64, wrong), "");
  // 288 rows over 4 ranks: 72 each.
  const Offsets uneven = {0, 72, 144, 216, 288};
  const std::string refusal = shard_refusal(format(), 288, 64, uneven);
  EXPECT_EQ(refusal.empty(), format().per_tensor());
  if (refusal.empty()) GTEST_SKIP() << "no shard of this format shares a block";
  EXPECT_NE(refusal.find("after 72 rows"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("multiple of " + std::to_string(multiple)), std::string::npos) << refusal;
  const QuantizedTensor full = quantized(values(288, 64));
  EXPECT_THROW(split_rows(*device_, {}, full, uneven, {.holder = anyone()}), Error);
}

TEST_P(QuantizedStorage, ShardsOutliveTheFullTensorAndKeepNothingOfIt) {
  for (const bool fixed : {true, false}) {
    Behaviors behaviors;
    behaviors.drop_transpose_in_make_like = fixed;
    Ledger& ledger = device_->ledger();
    const std::int64_t before = ledger.live_bytes();
    QuantizedTensor shard, full = quantized(values(256, 32));
    const std::int64_t transpose =
        full.columnwise().data.bytes() + (format().per_tensor() ? 4 : full.columnwise().scale_inv.bytes());
    shard = cut_rows(*device_, behaviors, full,
                     {.begin = 128, .count = 128, .orientations = {true, false}, .holder = anyone()});
    full = {};
    EXPECT_EQ(static_cast<bool>(shard.columnwise()), !fixed);
    shard.drop_columnwise();
    const std::int64_t own = shard.bytes();
    shard = {};
    full = quantized(values(256, 32));
    shard = cut_rows(*device_, behaviors, full,
                     {.begin = 128, .count = 128, .orientations = {true, false}, .holder = anyone()});
    full = {};
    EXPECT_EQ(ledger.live_bytes() - before, own + (fixed ? 0 : transpose));
  }
}

TEST_P(QuantizedStorage, SplittingKeepsColumnwiseOnlyTensors) {
  const Offsets offsets = {0, 128, 256};
  const QuantizedTensor columnwise_only = quantized(values(256, 64), {false, true});
  const auto shards = split_rows(*device_, {}, columnwise_only, offsets, {.holder = anyone()});
  ASSERT_EQ(shards.size(), 2u);
  for (const QuantizedTensor& shard : shards) {
    EXPECT_FALSE(shard.rowwise());
    EXPECT_TRUE(shard.columnwise());
  }
}

TEST_P(QuantizedStorage, OnlyMicroscaledTensorsAreSplitAsValuesWithoutTheFix) {
  EXPECT_TRUE(splits_in_eight_bits({}, format()));
  EXPECT_EQ(splits_in_eight_bits(reverted(&Behaviors::split_in_eight_bits), format()),
            format().scale_dtype() != DType::kE8M0);
}

TEST_P(QuantizedStorage, ColumnwiseDataMadeFromRowwiseDataAreExact) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {63, 65}, {64, 64}, {130, 200}, {0, 5}, {5, 0}, {257, 1100}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    QuantizedTensor q = quantized(values(rows, cols), {true, false});
    if (!format().columnwise_is_transpose()) {
      EXPECT_THROW(make_columnwise(*device_, q, anyone()), Error);
      continue;
    }
    const QuantizedTensor expected = quantized(values(rows, cols));
    q.columnwise() = make_columnwise(*device_, q, anyone());
    ASSERT_TRUE(equals(q, expected));
    ASSERT_EQ(format().per_tensor(), q.rowwise().scale_inv.buffer().same_block(q.columnwise().scale_inv.buffer()));

    // All 256 bytes, NaNs of every payload and -0 among them.
    Bytes data(static_cast<std::size_t>(q.rowwise().data.numel()));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    device_->write_bytes(q.rowwise().data, std::as_bytes(std::span(data)));
    const Bytes transposed = bytes_of(*device_, make_columnwise(*device_, q, anyone()).data);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        ASSERT_EQ(transposed[static_cast<std::size_t>(j * rows + i)], data[static_cast<std::size_t>(i * cols + j)])
            << i << ", " << j;
  }
}

TEST_P(QuantizedStorage, NewZerosHaveAScaleOfTheirOwn) {
  for (const NamedOrientations& orientations : kOrientations)
    for (const std::int64_t rows : {0, 32, 300}) {
      SCOPED_TRACE(testing::Message() << rows << ", " << orientations.name);
      const QuantizedTensor like = quantized(values(128, 160), orientations.orientations);
      const QuantizedTensor zeros = new_zeros(*device_, {}, like, rows, anyone());
      for (const auto& [orientation, source, layout] :
           {std::tuple{&zeros.rowwise(), &like.rowwise(), rowwise_layout(format(), rows, 160)},
            std::tuple{&zeros.columnwise(), &like.columnwise(), columnwise_layout(format(), rows, 160)}}) {
        ASSERT_EQ(static_cast<bool>(*orientation), static_cast<bool>(*source));
        if (!*orientation) continue;
        EXPECT_EQ(orientation->data.shape(), layout.data.shape);
        EXPECT_EQ(orientation->scale_inv.shape(), layout.scales.spec.shape);
        for (const std::uint8_t byte : bytes(orientation->data)) ASSERT_EQ(byte, 0);
        if (format().per_tensor()) {
          EXPECT_EQ(device_->read(orientation->scale_inv), device_->read(source->scale_inv));
          EXPECT_FALSE(orientation->scale_inv.buffer().same_block(source->scale_inv.buffer()));
        } else {
          for (const std::uint8_t byte : bytes(orientation->scale_inv)) ASSERT_EQ(byte, 0);
        }
      }
    }
  // Without the fix the scale is shared: rewriting the zeros would rescale the tensor that they were made like.
  if (!format().per_tensor()) GTEST_SKIP() << "only scales of a full tensor";
  const QuantizedTensor like = quantized(values(128, 160));
  const QuantizedTensor zeros = new_zeros(*device_, reverted(&Behaviors::own_scale_in_new_zeros), like, 128, anyone());
  EXPECT_TRUE(zeros.rowwise().scale_inv.buffer().same_block(like.rowwise().scale_inv.buffer()));
}

TEST_P(QuantizedStorage, CopiesBytesIfEveryWantedOrientationIsGiven) {
  for (const NamedOrientations& wanted : kOrientations)
    for (const NamedOrientations& given : kOrientations) {
      SCOPED_TRACE(testing::Message() << given.name << " into " << wanted.name);
      const Tensor x = values(128, 160);
      QuantizedTensor to = quantized(values(128, 160), wanted.orientations);
      fill(*device_, x, 3.0f);
      const QuantizedTensor from = quantized(x, given.orientations);
      const Quantizer quantizer = {
          .format = format(),
          .scale = format().amax_source == AmaxSource::kHistory ? support::scalar(*device_, 3.0f) : Tensor{},
          .amax = {},
          .holder = anyone()};
      const bool has_all = (given.orientations.rowwise || !wanted.orientations.rowwise) &&
                           (given.orientations.columnwise || !wanted.orientations.columnwise);
      EXPECT_EQ(copy_rows(*device_, {}, from, to, &quantizer), has_all);
      EXPECT_TRUE(equals(to, quantized(x, wanted.orientations)));
      if (!has_all) {
        EXPECT_THROW(copy_rows(*device_, {}, from, to, nullptr), Error);
      }
    }
}

TEST_P(QuantizedStorage, CopyThroughValuesKeepsValuesAndMayChangeBytes) {
  const Tensor x = support::make_tensor(*device_, {512, 256}, DType::kF32, reference::gaussian_values(512 * 256, 23));
  const QuantizedTensor from = quantized(x, {true, false});
  QuantizedTensor through_values = quantized(x, {true, false}), bytes_copied = quantized(x, {true, false});
  const Quantizer quantizer = {
      .format = format(),
      .scale = format().amax_source == AmaxSource::kHistory ? support::scalar(*device_, 3.0f) : Tensor{},
      .amax = {},
      .holder = anyone()};
  EXPECT_TRUE(copy_rows(*device_, {}, from, bytes_copied, &quantizer));
  EXPECT_TRUE(equals(bytes_copied, from));
  EXPECT_FALSE(copy_rows(*device_, reverted(&Behaviors::copy_bytes_between_shards), from, through_values, &quantizer));
  const bool same_data =
      static_cast<bool>(reference::bitwise_equal(bytes(through_values.rowwise().data), bytes(from.rowwise().data)));
  // A power-of-two scale changes if the largest of many blocks was rounded up to the next power of two.
  const bool many_blocks = format().block_rows == 1;
  EXPECT_EQ(same_data, format().scale == ScaleKind::kE8M0Floor || format().scale == ScaleKind::kF32 || !many_blocks);
  if (format().scale == ScaleKind::kF32) GTEST_SKIP() << "other scales drift by an ulp";
  EXPECT_EQ(bytes(dequantize_matrix(*device_, through_values, DType::kF32, anyone())),
            bytes(dequantize_matrix(*device_, from, DType::kF32, anyone())));
}

TEST_P(QuantizedStorage, SlicesAreViewsIfScalesAllowIt) {
  const Tensor x = values(300, 160);
  const bool tensor = format().per_tensor(), micro = !format().columnwise_stored_transposed();
  const bool square = format().block_rows == 128;
  if (tensor) use_scale_of(x);
  for (const NamedOrientations& orientations : kOrientations) {
    const QuantizedTensor full = quantized(x, orientations.orientations);
    const Tensor all = dequantize_matrix(*device_, full, DType::kF32, anyone());
    for (const auto& [begin, count] :
         {std::pair{0, 300}, {0, 128}, {128, 172}, {128, 128}, {64, 64}, {0, 5}, {128, 0}}) {
      SCOPED_TRACE(testing::Message() << begin << " + " << count << ", " << orientations.name);
      const RowCut cut = {.begin = begin, .count = count, .holder = anyone()};
      const RowSlice slice = slice_rows(*device_, {}, full, cut, DType::kF32);
      const bool aligned = begin % 128 == 0 && (count % 128 == 0 || begin + count == 300);
      const bool view =
          count == 300 || tensor || (aligned && (micro || (square && !orientations.orientations.columnwise)));
      ASSERT_EQ(slice.reason.empty(), view) << slice.reason;
      ASSERT_EQ(slice.view.empty(), !view);
      const RowSlice before = slice_rows(*device_, reverted(&Behaviors::view_aligned_slices), full, cut, DType::kF32);
      ASSERT_TRUE(before.view.empty());
      ASSERT_EQ(bytes(before.values), bytes(all.row_range(begin, count)));
      if (!view) {
        ASSERT_EQ(bytes(slice.values), bytes(before.values));
        continue;
      }
      ASSERT_TRUE(equals(slice.view, shard_of(x, begin, count, orientations.orientations)));
      ASSERT_EQ(bytes(dequantize_matrix(*device_, slice.view, DType::kF32, anyone())), bytes(before.values));
      const auto& orientation = [](const QuantizedTensor& q) -> const QuantizedOrientation& {
        return q.rowwise() ? q.rowwise() : q.columnwise();
      };
      ASSERT_TRUE(orientation(slice.view).data.buffer().same_block(orientation(full).data.buffer()));
    }
  }
}

TEST_P(QuantizedStorage, ViewsKeepTheColumnwiseOrientation) {
  const QuantizedTensor q = quantized(values(64, 96));
  const QuantizedTensor viewed = view_as(q, {4, 16, 96});
  EXPECT_EQ(viewed.shape(), (Shape{4, 16, 96}));
  EXPECT_TRUE(orientation_equals(viewed.rowwise(), q.rowwise()));
  EXPECT_TRUE(orientation_equals(viewed.columnwise(), q.columnwise()));
  EXPECT_TRUE(viewed.columnwise().data.buffer().same_block(q.columnwise().data.buffer()));
  EXPECT_THROW(view_as(q, {4, 16, 95}), Error);
  if (!format().per_tensor()) {
    EXPECT_THROW(view_as(q, {64 * 96}), Error);
    return;
  }
  const QuantizedTensor flat = view_as(q, {64 * 96});
  EXPECT_TRUE(reference::bitwise_equal(bytes(flat.rowwise().data), bytes(q.rowwise().data)));
  EXPECT_FALSE(flat.columnwise());
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedStorage, ::testing::ValuesIn(support::all_formats()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace fp8lab
