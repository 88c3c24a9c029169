#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "backend/device.h"
#include "core/float16.h"
#include "core/float8.h"
#include "ops/gemm/gemm_operands.h"
#include "reference/parallel.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "tensor/quantized_tensor.h"

/// Operands of the sizes of real models. Their values come from a table on the host, in which any element can be looked
/// up, and they can be written to any device.
namespace fp8lab::gemm_test {

enum class Draw {
  kNormal,
  kPositive,  ///< magnitudes of normal values
  /// -8 to 8 under scales that are powers of two: sums of up to a thousand are exact in any order, also in the 13 bits
  /// of a matrix unit, and have more bits than BF16.
  kIntegers,
};

struct LargeSpec {
  Kind kind = Kind::kBF16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint64_t seed = 1;
  Draw draw = Draw::kNormal;
  bool transposed = false;  ///< stored as [cols, rows]: plain and microscaled operands
};

inline DType dtype_of(Kind kind) {
  switch (kind) {
    case Kind::kF32: return DType::kF32;
    case Kind::kBF16: return DType::kBF16;
    case Kind::kF16: return DType::kF16;
    case Kind::kE5M2PerTensor: return DType::kE5M2;
    default: return DType::kE4M3;
  }
}

class LargeOperand {
 public:
  explicit LargeOperand(const LargeSpec& spec) : spec_(spec), dtype_(dtype_of(spec.kind)) {
    make_table();
    draw();
    if (const std::optional<QuantFormat> format = format_of(spec.kind)) make_scales(*format);
  }

  const LargeSpec& spec() const { return spec_; }
  /// The value of element (i, l).
  double at(std::int64_t i, std::int64_t l) const {
    const double code = values_[draws_[static_cast<std::size_t>(i * spec_.cols + l)]];
    if (scales_.empty()) return code;
    return code * scale_values_[block_rows_ == 0 ? 0u : scale_index(i / block_rows_, l / block_cols_)];
  }
  void put_nan(std::int64_t i, std::int64_t l) { draws_[static_cast<std::size_t>(i * spec_.cols + l)] = kNan; }

  struct OnDevice {
    Tensor values;
    Tensor scales;
    OperandView view;
  };
  OnDevice put_on(Device& device) const {
    OnDevice result;
    const std::int64_t rows = spec_.rows, cols = spec_.cols;
    const bool transposed = spec_.transposed;
    result.values =
        device.allocate({transposed ? Shape{cols, rows} : Shape{rows, cols}, dtype_}, support::anyone(device));
    std::vector<std::byte> bytes(static_cast<std::size_t>(result.values.bytes()));
    const std::size_t size = size_bytes(dtype_);
    reference::parallel_for(static_cast<std::uint32_t>(rows), [&](std::uint32_t i) {
      for (std::int64_t l = 0; l < cols; ++l) {
        const auto to = static_cast<std::size_t>(transposed ? l * rows + i : i * cols + l) * size;
        std::memcpy(&bytes[to], &encoded_[draws_[static_cast<std::size_t>(i * cols + l)] * size], size);
      }
    });
    device.write_bytes(result.values, bytes);
    result.view.values = transposed ? result.values.transposed().view() : result.values.view();
    if (scales_.empty()) return result;
    result.scales = device.allocate({Shape{scale_count_}, scale_dtype_}, support::anyone(device));
    device.write_bytes(result.scales, scales_);
    result.view.scales = {.data = result.scales.view().data,
                          .dtype = scale_dtype_,
                          .block_rows = block_rows_,
                          .block_cols = block_cols_,
                          .row_stride = scale_row_stride_,
                          .col_stride = scale_col_stride_,
                          .storage_elems = scale_count_};
    return result;
  }

 private:
  static constexpr std::uint16_t kNan = 4095;

  double drawn_value(std::uint64_t index) const {
    if (spec_.draw == Draw::kIntegers) return static_cast<double>(static_cast<int>(index % 17) - 8);
    const double normal = reference::gaussian(11, index);
    return spec_.draw == Draw::kPositive ? std::fabs(normal) : normal;
  }

  void make_table() {
    const std::size_t size = size_bytes(dtype_);
    values_.resize(kNan + 1);
    encoded_.resize(values_.size() * size);
    for (std::size_t index = 0; index < values_.size(); ++index) {
      const float value =
          index == kNan ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(drawn_value(index));
      const auto keep = [&](auto code, float decoded) {
        std::memcpy(&encoded_[index * size], &code, sizeof code);
        values_[index] = decoded;
      };
      switch (dtype_) {
        case DType::kF32: keep(value, value); break;
        case DType::kBF16: keep(f32_to_bf16(value), bf16_to_f32(f32_to_bf16(value))); break;
        case DType::kF16: keep(f32_to_f16(value), f16_to_f32(f32_to_f16(value))); break;
        case DType::kE4M3: keep(f32_to_e4m3(value), e4m3_to_f32(f32_to_e4m3(value))); break;
        default: keep(f32_to_e5m2(value), e5m2_to_f32(f32_to_e5m2(value))); break;
      }
    }
  }

  void draw() {
    draws_.resize(static_cast<std::size_t>(spec_.rows * spec_.cols));
    reference::parallel_for(static_cast<std::uint32_t>(spec_.rows), [&](std::uint32_t i) {
      std::uint16_t* const row = draws_.data() + i * static_cast<std::size_t>(spec_.cols);
      for (std::int64_t l = 0; l < spec_.cols; l += 4) {
        std::uint64_t bits = reference::scramble((spec_.seed << 48) + (static_cast<std::uint64_t>(i) << 20) +
                                                 static_cast<std::uint64_t>(l));
        for (std::int64_t part = l; part < l + 4 && part < spec_.cols; ++part, bits >>= 16)
          row[part] = static_cast<std::uint16_t>((bits & 0xFFFF) % kNan);
      }
    });
  }

  std::size_t scale_index(std::int64_t block_row, std::int64_t block_col) const {
    return static_cast<std::size_t>(block_row * scale_row_stride_ + block_col * scale_col_stride_);
  }

  void make_scales(const QuantFormat& format) {
    const ScaleLayout layout = scale_layout(format, spec_.rows, spec_.cols);
    block_rows_ = format.block_rows;
    block_cols_ = format.block_cols;
    scale_dtype_ = format.scale_dtype();
    scale_row_stride_ = layout.row_stride;
    scale_col_stride_ = layout.col_stride;
    scale_count_ = layout.spec.shape.numel();
    if (spec_.transposed) {  // tensor/quantized_tensor.h, columnwise_layout()
      const std::int64_t padded_rows = (spec_.rows + 127) / 128 * 128, blocks = (spec_.cols + 31) / 32;
      scale_row_stride_ = 1;
      scale_col_stride_ = padded_rows;
      scale_count_ = padded_rows * ((blocks + 3) / 4 * 4);
    }
    scale_values_.assign(static_cast<std::size_t>(scale_count_), 0.0);
    scales_.assign(static_cast<std::size_t>(scale_count_) * size_bytes(scale_dtype_), std::byte{0});
    const std::int64_t down = format.per_tensor() ? 1 : (spec_.rows + block_rows_ - 1) / block_rows_;
    const std::int64_t across = format.per_tensor() ? 1 : (spec_.cols + block_cols_ - 1) / block_cols_;
    for (std::int64_t i = 0; i < down; ++i)
      for (std::int64_t j = 0; j < across; ++j) put_scale(i, j);
  }

  void put_scale(std::int64_t block_row, std::int64_t block_col) {
    const std::size_t at = format_per_tensor() ? 0u : scale_index(block_row, block_col);
    const double drawn = reference::uniform(
        spec_.seed + 7, (static_cast<std::uint64_t>(block_row) << 20) + static_cast<std::uint64_t>(block_col));
    if (scale_dtype_ == DType::kE8M0) {
      const auto byte = static_cast<std::uint8_t>(125 + static_cast<int>(4.0 * drawn));
      scales_[at] = static_cast<std::byte>(byte);
      scale_values_[at] = std::ldexp(1.0, byte - 127);
      return;
    }
    const float scale = spec_.draw == Draw::kIntegers ? std::ldexp(1.0f, static_cast<int>(4.0 * drawn) - 2)
                                                      : static_cast<float>(0.3 * drawn + 0.01);
    std::memcpy(&scales_[at * sizeof scale], &scale, sizeof scale);
    scale_values_[at] = scale;
  }
  bool format_per_tensor() const { return block_cols_ == 0; }

  LargeSpec spec_;
  DType dtype_;
  std::vector<double> values_;      // the table's values
  std::vector<std::byte> encoded_;  // the same values as dtype_
  std::vector<std::uint16_t> draws_;
  std::int64_t block_rows_ = 0, block_cols_ = 0;
  DType scale_dtype_ = DType::kF32;
  std::int64_t scale_row_stride_ = 0, scale_col_stride_ = 0, scale_count_ = 0;
  std::vector<double> scale_values_;
  std::vector<std::byte> scales_;
};

}  // namespace fp8lab::gemm_test
