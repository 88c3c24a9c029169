#include "harness/measure/cast_counts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/float8.h"
#include "core/float8_format.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {
namespace {

constexpr unsigned kMagnitude = 0x7F;

/// The value of each byte of the type.
std::array<double, 256> values_of(DType dtype) {
  std::array<double, 256> values{};
  for (std::size_t byte = 0; byte < values.size(); ++byte)
    values[byte] = visit_float8(dtype, [&](auto format) {
      return static_cast<double>(decode<decltype(format)>(static_cast<std::uint8_t>(byte)));
    });
  return values;
}

/// The largest code of the type, and the largest magnitude that is rounded to it.
struct Largest {
  unsigned code;
  double reach;
};

Largest largest_of(DType dtype) {
  if (dtype == DType::kE4M3) return {E4M3::kMaxCode, 464.0};
  return {E5M2::kMaxCode, 61440.0};
}

/// One orientation of a quantized tensor on the host, and the values that it was cast from: element (i, j) of the
/// operand was cast from x[i * x_row + j * x_col].
struct HostOrientation {
  const OperandView& operand;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  const std::vector<float>& x;
  std::int64_t x_row;
  std::int64_t x_col;

  unsigned byte_at(std::int64_t i, std::int64_t j) const {
    const std::int64_t at = i * operand.values.row_stride + j * operand.values.col_stride;
    return std::to_integer<unsigned>(data[static_cast<std::size_t>(at)]);
  }
  double scale_inv_at(std::int64_t i, std::int64_t j) const {
    const ScaleView& view = operand.scales;
    const std::int64_t at =
        view.block_cols == 0 ? 0 : i / view.block_rows * view.row_stride + j / view.block_cols * view.col_stride;
    const std::byte* const scale = scales.data() + static_cast<std::size_t>(at) * size_bytes(view.dtype);
    if (view.dtype == DType::kE8M0) return static_cast<double>(e8m0_to_f32(std::to_integer<std::uint8_t>(*scale)));
    float value = 0.0f;
    std::memcpy(&value, scale, sizeof value);
    return static_cast<double>(value);
  }
};

CastCounts count(const HostOrientation& orientation, const Largest& largest) {
  // In tiles, so that reads hit the cache whether an array is traversed along its rows or along its columns.
  constexpr std::int64_t kTile = 64;
  const std::int64_t rows = orientation.operand.values.rows, cols = orientation.operand.values.cols;
  const std::array<double, 256> values = values_of(orientation.operand.values.dtype);
  CastCounts counts{.values = rows * cols};
  for (std::int64_t row = 0; row < rows; row += kTile)
    for (std::int64_t col = 0; col < cols; col += kTile)
      for (std::int64_t i = row; i < std::min(row + kTile, rows); ++i)
        for (std::int64_t j = col; j < std::min(col + kTile, cols); ++j) {
          const unsigned byte = orientation.byte_at(i, j), magnitude = byte & kMagnitude;
          const double scale_inv = orientation.scale_inv_at(i, j);
          const auto value = static_cast<double>(
              orientation.x[static_cast<std::size_t>(i * orientation.x_row + j * orientation.x_col)]);
          const double change = values[byte] * scale_inv - value;
          counts.signal += value * value;
          counts.noise += change * change;
          if (magnitude == 0)
            counts.underflowed += value != 0.0 && !std::isnan(value);
          else if (magnitude == largest.code)
            counts.clipped += std::abs(value) > largest.reach * scale_inv;
        }
  return counts;
}

}  // namespace

void CastCounter::saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) {
  const QuantFormat& format = made.format();
  const Largest largest = largest_of(format.dtype);
  const std::vector<float> values = device.read(x);
  const bool has_rows = static_cast<bool>(made.rowwise());
  const Ledger& ledger = device.ledger();
  const Holder& holder = ledger.holder((has_rows ? made.rowwise() : made.columnwise()).data.holder());
  const std::string tensor = holder.what.empty() ? holder.owner : holder.owner + " " + holder.what;
  auto of =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorCasts& one) { return one.tensor == tensor; });
  if (of == tensors_.end()) of = tensors_.insert(tensors_.end(), TensorCasts{.tensor = tensor, .by_step = {}});
  CastCounts& counts = of->by_step[ledger.phase().step];
  const auto count_orientation = [&](const QuantizedOrientation& orientation, const OperandView& operand,
                                     std::int64_t x_row, std::int64_t x_col) {
    counts += count(
        {operand, device.read_bytes(orientation.data), device.read_bytes(orientation.scale_inv), values, x_row, x_col},
        largest);
  };
  if (has_rows) count_orientation(made.rowwise(), made.rowwise_operand(), made.cols(), 1);
  if (made.columnwise() && !(has_rows && format.columnwise_is_transpose()))
    count_orientation(made.columnwise(), made.columnwise_operand(false), 1, made.cols());
}

CastCounts CastCounter::counts() const {
  CastCounts sum;
  for (const TensorCasts& tensor : tensors_)
    for (const auto& [step, counts] : tensor.by_step) sum += counts;
  return sum;
}

}  // namespace fp8lab
