#include "harness/cast_counts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/float8.h"
#include "ops/quantize.h"

namespace fp8lab {
namespace {

/// The largest code of a format, and how much above its value, as a factor, rounding to it ends.
struct Largest {
  std::uint8_t code;
  double reach;
};

Largest largest_of(DType payload) {
  if (payload == DType::kE4M3) return {E4M3::kMaxCode, 464.0 / 448.0};
  return {E5M2::kMaxCode, 61440.0 / 57344.0};
}

/// What became of a matrix in one half of its cast, all in one order.
struct Half {
  std::vector<float> x;
  std::vector<float> decoded;
  std::vector<std::byte> codes;
};

CastCounts count(const Half& half, const Largest& largest) {
  constexpr unsigned kMagnitude = 0x7F;
  CastCounts counts{.values = static_cast<std::int64_t>(half.x.size())};
  for (std::size_t i = 0; i < half.x.size(); ++i) {
    const unsigned code = std::to_integer<unsigned>(half.codes[i]) & kMagnitude;
    const double value = std::abs(static_cast<double>(half.x[i])), kept = std::abs(static_cast<double>(half.decoded[i]));
    counts.clipped += code == largest.code && value > largest.reach * kept;
    counts.underflowed += code == 0 && value > 0.0;
  }
  return counts;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& values, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kTile = 32;  // so that lines of the cache are used up while they are there
  std::vector<T> out(values.size());
  for (std::int64_t row = 0; row < rows; row += kTile)
    for (std::int64_t col = 0; col < cols; col += kTile)
      for (std::int64_t i = row; i < std::min(row + kTile, rows); ++i)
        for (std::int64_t j = col; j < std::min(col + kTile, cols); ++j)
          out[static_cast<std::size_t>(j * rows + i)] = values[static_cast<std::size_t>(i * cols + j)];
  return out;
}

}  // namespace

void CastCounter::saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) {
  const QuantFormat& format = made.format();
  const Largest largest = largest_of(format.payload);
  const std::int64_t rows = made.rows(), cols = made.cols();
  const auto decoded = [&](const OperandView& operand) {
    return device.read(dequantize(device, operand, DType::kF32, device.holder(HolderKind::kWorkspace, "cast counts")));
  };
  const std::vector<float> values = device.read(x);
  const bool has_rows = static_cast<bool>(made.rowwise());
  if (has_rows)
    counts_ += count({values, decoded(made.rowwise_operand()), device.read_bytes(made.rowwise().codes)}, largest);
  if (!made.columnwise() || (has_rows && format.columnwise_is_transpose())) return;
  std::vector<std::byte> codes = device.read_bytes(made.columnwise().codes);
  // An operand is the transposed matrix, as codes are stored but for those under E8M0 scales.
  if (format.scale_dtype() == DType::kE8M0) codes = transposed(codes, rows, cols);
  counts_ += count({transposed(values, rows, cols), decoded(made.columnwise_operand(false)), std::move(codes)}, largest);
}

}  // namespace fp8lab
