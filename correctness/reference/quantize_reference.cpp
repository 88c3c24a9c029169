#include "reference/quantize_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/e8m0_reference.h"
#include "reference/float8_reference.h"

namespace fp8lab::reference {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

bool is_e8m0(const QuantFormat& format) {
  return format.scale == ScaleKind::kE8M0Rceil || format.scale == ScaleKind::kE8M0Floor;
}

const SmallFloat& dtype(const QuantFormat& format) {
  static const SmallFloat e4m3(kE4M3Layout), e5m2(kE5M2Layout);
  return format.dtype == DType::kE4M3 ? e4m3 : e5m2;
}

std::int64_t up_to_multiple(std::int64_t n, std::int64_t of) { return (n + of - 1) / of * of; }

/// The index of each block's scale, by the layouts of cuBLASLt and of the OCP formats.
struct Layout {
  std::int64_t blocks_down, blocks_across, elems;
  std::int64_t down_stride, across_stride;

  Layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
    if (format.block_cols == 0) {
      blocks_down = blocks_across = elems = 1;
      down_stride = across_stride = 0;
      return;
    }
    blocks_down = up_to_multiple(rows, format.block_rows) / format.block_rows;
    blocks_across = up_to_multiple(cols, format.block_cols) / format.block_cols;
    if (is_e8m0(format)) {
      down_stride = up_to_multiple(blocks_across, 4);
      across_stride = 1;
      elems = up_to_multiple(blocks_down, 128) * down_stride;
    } else if (format.block_rows == 1) {
      down_stride = 1;
      across_stride = up_to_multiple(blocks_down, 4);
      elems = blocks_across * across_stride;
    } else {
      down_stride = up_to_multiple(blocks_across, 4);
      across_stride = 1;
      elems = blocks_down * down_stride;
    }
  }
  std::size_t index(std::int64_t down, std::int64_t across) const {
    return static_cast<std::size_t>(down * down_stride + across * across_stride);
  }
};

double larger_magnitude(double amax, double x) {
  return std::isnan(amax) || std::isnan(x) ? std::nan("") : std::fmax(amax, std::fabs(x));
}

double power_of_two(int exponent) { return std::ldexp(1.0, exponent); }

/// A float scale for an amax.
float f32_scale(double amax, const QuantFormat& format, double largest) {
  const double floor_of_amax = format.epsilon;
  const double guarded = amax < floor_of_amax ? floor_of_amax : amax;
  if (std::isnan(guarded) || std::isinf(guarded) || guarded == 0) return 1.0f;
  const double quotient = dtype(format).max() / guarded;
  // From half an ulp above the largest float on, rounding would give Inf.
  const float scale = quotient >= kFloatMax ? static_cast<float>(largest) : static_cast<float>(quotient);
  if (format.scale != ScaleKind::kF32PowerOfTwo) return scale;
  return static_cast<float>(power_of_two(std::ilogb(static_cast<double>(scale))));
}

std::uint8_t e8m0_byte(double amax, const QuantFormat& format, Flaw flaw) {
  const bool floor = (format.scale == ScaleKind::kE8M0Floor) != (flaw == Flaw::kFloorForCeiling);
  const int emax = std::ilogb(dtype(format).max());
  return static_cast<std::uint8_t>(floor ? e8m0_floor(amax, emax) : e8m0_rceil(amax, dtype(format).max()));
}

std::uint8_t code_of(double x, double scale, const QuantFormat& format, Flaw flaw) {
  if (flaw == Flaw::kScaleThroughBf16) {
    static const SmallFloat bf16(kBFloat16Layout);
    scale = bf16.decode(bf16.encode(scale));
  }
  const double product =
      flaw == Flaw::kDividesByInverse ? x / static_cast<double>(static_cast<float>(1.0 / scale)) : x * scale;
  const double rounded = static_cast<double>(static_cast<float>(product));
  std::uint32_t code = dtype(format).encode(rounded);
  if (flaw == Flaw::kTruncates && std::fabs(dtype(format).decode(code)) > std::fabs(rounded)) --code;
  return static_cast<std::uint8_t>(code);
}

template <class T>
void put(std::vector<std::uint8_t>& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

}  // namespace

Matrix Matrix::transposed() const {
  Matrix result{cols, rows, std::vector<double>(values.size()), largest};
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) result.values[static_cast<std::size_t>(j * rows + i)] = at(i, j);
  return result;
}

double amax(const Matrix& matrix) {
  double result = 0;
  for (const double x : matrix.values) result = larger_magnitude(result, x);
  return result;
}

float tensor_scale(double amax, const QuantFormat& format) { return f32_scale(amax, format, kFloatMax); }

Quantized quantize(const Matrix& matrix, const QuantFormat& format, float scale, Flaw flaw) {
  const Layout layout(format, matrix.rows, matrix.cols);
  const bool full = format.block_cols == 0;
  const std::size_t blocks = static_cast<std::size_t>(layout.elems);
  Quantized result;
  result.data.resize(matrix.values.size());
  result.scale_bytes.assign(blocks * (is_e8m0(format) ? 1 : 4), 0);

  const std::int64_t shift = flaw == Flaw::kNeighboursBlock && !full ? 1 : 0;
  const auto block = [&](std::int64_t i, std::int64_t j) {
    if (full) return std::size_t{0};
    const std::int64_t across = std::min((j + shift) / format.block_cols, layout.blocks_across - 1);
    return layout.index(i / format.block_rows, across);
  };
  std::vector<double> amaxes(blocks, 0.0), scales(blocks, 1.0);
  for (std::int64_t i = 0; i < matrix.rows; ++i)
    for (std::int64_t j = 0; j < matrix.cols; ++j) {
      double& largest = amaxes[block(i, j)];
      const double x = matrix.at(i, j);
      largest = flaw == Flaw::kSignedAmax ? std::fmax(largest, x) : larger_magnitude(largest, x);
    }
  for (std::int64_t down = 0; down < layout.blocks_down; ++down)
    for (std::int64_t across = 0; across < layout.blocks_across; ++across) {
      const std::size_t index = layout.index(down, across);
      if (is_e8m0(format)) {
        const std::uint8_t byte = e8m0_byte(amaxes[index], format, flaw);
        scales[index] = byte == 255 ? std::nan("") : power_of_two(127 - byte);
        put(result.scale_bytes, index, byte);
      } else {
        const float multiplier = full ? scale : f32_scale(amaxes[index], format, matrix.largest);
        scales[index] = static_cast<double>(multiplier);
        put(result.scale_bytes, index, static_cast<float>(1.0 / scales[index]));
      }
    }
  for (std::int64_t i = 0; i < matrix.rows; ++i)
    for (std::int64_t j = 0; j < matrix.cols; ++j)
      result.data[static_cast<std::size_t>(i * matrix.cols + j)] =
          code_of(matrix.at(i, j), scales[block(i, j)], format, flaw);
  return result;
}

Quantized quantize_columnwise(const Matrix& matrix, const QuantFormat& format, float scale) {
  Quantized orientation = quantize(matrix.transposed(), format, scale);
  if (!is_e8m0(format)) return orientation;
  const auto transpose = [](std::vector<std::uint8_t>& bytes, std::int64_t rows, std::int64_t cols) {
    const std::vector<std::uint8_t> from = bytes;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        bytes[static_cast<std::size_t>(j * rows + i)] = from[static_cast<std::size_t>(i * cols + j)];
  };
  transpose(orientation.data, matrix.cols, matrix.rows);
  const std::int64_t pitch = Layout(format, matrix.cols, matrix.rows).down_stride;
  if (pitch > 0)
    transpose(orientation.scale_bytes, static_cast<std::int64_t>(orientation.scale_bytes.size()) / pitch, pitch);
  return orientation;
}

Matrix dequantize(const Quantized& quantized, const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
  const Layout layout(format, rows, cols);
  Matrix result{rows, cols, std::vector<double>(quantized.data.size())};
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const bool full = format.block_cols == 0;
      const std::size_t index = full ? 0 : layout.index(i / format.block_rows, j / format.block_cols);
      double inverse = 0;
      if (is_e8m0(format)) {
        const int byte = quantized.scale_bytes[index];
        inverse = byte == 255 ? std::nan("") : power_of_two(byte - 127);
      } else {
        float stored = 0;
        std::memcpy(&stored, quantized.scale_bytes.data() + index * sizeof stored, sizeof stored);
        inverse = static_cast<double>(stored);
      }
      const auto element = static_cast<std::size_t>(i * cols + j);
      const double value = dtype(format).decode(quantized.data[element]) * inverse;
      result.values[element] = static_cast<double>(static_cast<float>(value));
    }
  return result;
}

void DelayedTensor::update(float last) {
  if (last == 0.0f) return;
  double amax = static_cast<double>(last);
  if (options_.algorithm == AmaxAlgorithm::kMax) {
    amax = std::isnan(last) ? 0.0 : amax;
    for (const float earlier : window_)
      if (!std::isnan(earlier)) amax = std::fmax(amax, static_cast<double>(earlier));
  }
  window_.push_back(last);
  if (static_cast<std::int64_t>(window_.size()) > options_.history_length - 1) window_.pop_front();
  if (std::isnan(amax) || std::isinf(amax) || amax <= 0) return;
  const double quotient = std::ldexp(static_cast<double>(fp8_max_), -options_.margin) / amax;
  scale_ = quotient >= kFloatMax ? static_cast<float>(kFloatMax) : static_cast<float>(quotient);
}

}  // namespace fp8lab::reference
