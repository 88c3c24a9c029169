#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "reference/float8_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "tensor/quantized_tensor.h"

/// Operands of every kind with their exact values. Quantized data and scales are written byte by byte, so that the
/// tests rely neither on quantization nor on the code that locates scales.
namespace fp8lab::gemm_test {

using Values = std::vector<double>;

inline const reference::SmallFloat& decoder(DType dtype) {
  static const reference::SmallFloat e4m3(reference::kE4M3Layout), e5m2(reference::kE5M2Layout);
  return dtype == DType::kE4M3 ? e4m3 : e5m2;
}

/// A GEMM operand [rows, cols] and its values, whatever owns its memory.
struct Operand {
  OperandView view;
  Values values;  ///< row-major, exact
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Tensor plain;
  QuantizedTensor quantized;

  double at(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * cols + j)]; }
};

inline Values transposed(const Values& values, std::int64_t rows, std::int64_t cols) {
  Values result(values.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      result[static_cast<std::size_t>(j * rows + i)] = values[static_cast<std::size_t>(i * cols + j)];
  return result;
}

enum class Kind { kF32, kBF16, kF16, kPerTensor, kE5M2PerTensor, kRowBlocks, kSquareBlocks, kMxfp8 };
/// How the operand is read along its columns.
enum class Path { kDirect, kTransposedView, kColumnwise };

inline const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "tensor", "e5m2tensor", "b1x128", "b128x128", "mxfp8"};
  return kNames[static_cast<int>(kind)];
}

inline std::optional<QuantFormat> format_of(Kind kind) {
  switch (kind) {
    case Kind::kPerTensor: return QuantFormat{};
    case Kind::kE5M2PerTensor: return QuantFormat{.dtype = DType::kE5M2};
    case Kind::kRowBlocks: return QuantFormat{.block_rows = 1, .block_cols = 128, .amax_source = AmaxSource::kBlock};
    case Kind::kSquareBlocks:
      return QuantFormat{.block_rows = 128, .block_cols = 128, .amax_source = AmaxSource::kBlock};
    case Kind::kMxfp8:
      return QuantFormat{
          .block_rows = 1, .block_cols = 32, .amax_source = AmaxSource::kBlock, .scale = ScaleKind::kE8M0Rceil};
    default: return std::nullopt;
  }
}

/// Writes quantized data and inverse scales of one orientation, by the layout that tensor/quantized_tensor.h describes.
class OrientationWriter {
 public:
  OrientationWriter(Device& device, const QuantFormat& format, std::uint64_t seed)
      : device_(device), format_(format), seed_(seed) {}

  /// Fills `orientation` and returns its values, [rows, cols]. `transposed`: stored as [cols, rows], as the column-wise
  /// orientation of a microscaled matrix is.
  Values write(QuantizedOrientation& orientation, std::int64_t rows, std::int64_t cols, bool transposed = false) {
    transposed_ = transposed;
    const Shape stored = transposed ? Shape{cols, rows} : Shape{rows, cols};
    orientation.data = device_.allocate({stored, format_.dtype}, support::anyone(device_));
    orientation.scale_inv =
        device_.allocate({Shape{scale_count(rows, cols)}, format_.scale_dtype()}, support::anyone(device_));
    scales_.assign(static_cast<std::size_t>(orientation.scale_inv.bytes()), std::byte{0});
    std::vector<std::byte> data(static_cast<std::size_t>(rows * cols));
    Values values(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::int64_t at = i * cols + j;
        const std::uint8_t code = code_of(at);
        data[static_cast<std::size_t>(transposed ? j * rows + i : at)] = static_cast<std::byte>(code);
        values[static_cast<std::size_t>(at)] = decoder(format_.dtype).decode(code) * write_scale(rows, cols, i, j);
      }
    device_.write_bytes(orientation.data, data);
    device_.write_bytes(orientation.scale_inv, scales_);
    return values;
  }

 private:
  /// The byte of an arbitrary finite value.
  std::uint8_t code_of(std::int64_t at) const {
    const std::uint64_t drawn = reference::scramble(seed_ ^ reference::scramble(static_cast<std::uint64_t>(at)));
    const std::uint64_t magnitude = drawn % (decoder(format_.dtype).max_code() + 1);
    return static_cast<std::uint8_t>(magnitude | (drawn >> 40 & 0x80u));
  }
  static std::int64_t padded(std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }
  std::int64_t scale_count(std::int64_t rows, std::int64_t cols) const {
    if (format_.per_tensor()) return 1;
    if (format_.block_cols == 32) return padded(rows, 128) * padded((cols + 31) / 32, 4);
    if (format_.block_rows == 1) return (cols + 127) / 128 * padded(rows, 4);
    return (rows + 127) / 128 * padded((cols + 127) / 128, 4);
  }
  template <class T>
  void put_scale(std::int64_t at, T scale) {
    std::memcpy(scales_.data() + static_cast<std::size_t>(at) * sizeof(T), &scale, sizeof(T));
  }
  /// Writes the inverse scale of element (i, j), a function of its block, and returns it.
  double write_scale(std::int64_t rows, std::int64_t cols, std::int64_t i, std::int64_t j) {
    if (format_.per_tensor()) {
      const float scale = static_cast<float>(0.3 * reference::uniform(seed_, 0) + 0.01);
      put_scale(0, scale);
      return scale;
    }
    const std::int64_t block_i = i / format_.block_rows, block_j = j / format_.block_cols;
    const double drawn = reference::uniform(seed_, static_cast<std::uint64_t>(1000 * block_i + block_j + 1));
    if (format_.block_cols == 32) {
      const std::uint8_t byte = static_cast<std::uint8_t>(120 + static_cast<int>(8.0 * drawn));
      put_scale(transposed_ ? block_j * padded(rows, 128) + block_i : block_i * padded((cols + 31) / 32, 4) + block_j,
                byte);
      return std::ldexp(1.0, byte - 127);
    }
    const float scale = static_cast<float>(0.3 * drawn + 0.01);
    put_scale(format_.block_rows == 1 ? block_j * padded(rows, 4) + block_i
                                      : block_i * padded((cols + 127) / 128, 4) + block_j,
              scale);
    return scale;
  }

  Device& device_;
  QuantFormat format_;
  std::uint64_t seed_;
  bool transposed_ = false;
  std::vector<std::byte> scales_;  // scales of the orientation being written
};

struct OperandSpec {
  Kind kind = Kind::kF32;
  Path path = Path::kDirect;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint64_t seed = 0;
};

inline Operand make_operand(Device& device, const OperandSpec& spec) {
  const bool direct = spec.path == Path::kDirect;
  const std::int64_t stored_rows = direct ? spec.rows : spec.cols, stored_cols = direct ? spec.cols : spec.rows;
  Operand operand{.view = {}, .values = {}, .rows = spec.rows, .cols = spec.cols, .plain = {}, .quantized = {}};
  if (const std::optional<QuantFormat> format = format_of(spec.kind)) {
    OrientationWriter writer(device, *format, spec.seed);
    operand.quantized = QuantizedTensor(Shape{stored_rows, stored_cols}, *format);
    if (spec.path == Path::kColumnwise) {
      operand.values = writer.write(operand.quantized.columnwise(), spec.rows, spec.cols, spec.kind == Kind::kMxfp8);
      operand.view = operand.quantized.columnwise_operand(false);
      return operand;
    }
    operand.values = writer.write(operand.quantized.rowwise(), stored_rows, stored_cols);
    operand.view = direct ? operand.quantized.rowwise_operand() : operand.quantized.columnwise_operand(true);
  } else {
    const DType dtype = spec.kind == Kind::kF32 ? DType::kF32 : spec.kind == Kind::kBF16 ? DType::kBF16 : DType::kF16;
    operand.plain = support::make_tensor(device, {stored_rows, stored_cols}, dtype,
                                         reference::gaussian_values(stored_rows * stored_cols, spec.seed));
    operand.values = support::read(device, operand.plain);
    operand.view = direct ? operand.plain.operand() : operand.plain.transposed().operand();
  }
  if (!direct) operand.values = transposed(operand.values, stored_rows, stored_cols);
  return operand;
}

}  // namespace fp8lab::gemm_test
