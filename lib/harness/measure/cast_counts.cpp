#include "harness/measure/cast_counts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "core/float8.h"
#include "core/float8_format.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {
namespace {

/// The value of each byte of the type.
std::array<double, 256> values_of(DType dtype) {
  std::array<double, 256> values{};
  for (std::size_t byte = 0; byte < values.size(); ++byte)
    values[byte] = visit_float8(dtype, [&](auto format) {
      return static_cast<double>(decode<decltype(format)>(static_cast<std::uint8_t>(byte)));
    });
  return values;
}

/// The largest value of the type, and the largest magnitude that is rounded to it.
struct Largest {
  double value;
  double reach;
};

Largest largest_of(DType dtype) {
  if (dtype == DType::kE4M3) return {448.0, 464.0};
  return {57344.0, 61440.0};
}

/// One orientation of a quantized tensor on the host, and the values that it was cast from: element (i, j) of the
/// operand was cast from x[i * x_row + j * x_col].
struct HostOrientation {
  const OperandView& operand;
  std::span<const std::byte> data;
  std::span<const std::byte> scales;
  std::span<const float> x;
  std::int64_t x_row;
  std::int64_t x_col;

  double scale_inv_at(std::int64_t i, std::int64_t j) const {
    const ScaleView& view = operand.scales;
    const std::int64_t at =
        view.per_tensor() ? 0 : i / view.block_rows * view.row_stride + j / view.block_cols * view.col_stride;
    const std::byte* const scale = scales.data() + static_cast<std::size_t>(at) * size_bytes(view.dtype);
    if (view.dtype == DType::kE8M0) return static_cast<double>(e8m0_to_f32(std::to_integer<std::uint8_t>(*scale)));
    float value = 0.0f;
    std::memcpy(&value, scale, sizeof value);
    return static_cast<double>(value);
  }
};

/// Sums over casts. Each of kSums partial sums adds every kSums-th element, so that a vector holds them all; their
/// order is fixed, so the sums have the same bits everywhere.
class CastSums {
 public:
  static constexpr std::int64_t kSums = 4;

  explicit CastSums(DType dtype) : values_(values_of(dtype)), largest_(largest_of(dtype)) {}

  /// Adds `count` elements that are `data_step` and `x_step` apart.
  void add(const std::byte* data, std::int64_t data_step, const float* x, std::int64_t x_step, const double* scale_inv,
           std::int64_t count) {
    // Sums in variables of this function stay in registers.
    Doubles signal = signal_, noise = noise_;
    Counts underflowed = underflowed_, clipped = clipped_;
    for (std::int64_t i = 0; i < count; i += kSums) {
      Doubles value{}, rounded{}, scale{};  // beyond the end 0, which adds nothing
      const std::int64_t filled = std::min(kSums, count - i);
      const auto fill = [&](std::int64_t k) {
        value[k] = static_cast<double>(x[(i + k) * x_step]);
        rounded[k] = values_[std::to_integer<std::size_t>(data[(i + k) * data_step])];
        scale[k] = scale_inv[i + k];
      };
      if (filled == kSums) {
        fill(0), fill(1), fill(2), fill(3);
      } else {
        for (std::int64_t k = 0; k < filled; ++k) fill(k);
      }
      const Doubles change = rounded * scale - value;
      signal += value * value;
      noise += change * change;
      const Doubles magnitude = value > 0.0 ? value : -value, code = rounded > 0.0 ? rounded : -rounded;
      underflowed -= (code == 0.0) & (magnitude > 0.0);  // true is -1
      clipped -= (code == largest_.value) & (magnitude > largest_.reach * scale);
    }
    signal_ = signal;
    noise_ = noise;
    underflowed_ = underflowed;
    clipped_ = clipped;
  }

  CastCounts sum(std::int64_t values) const {
    return {.values = values,
            .clipped = total<std::int64_t>(clipped_),
            .underflowed = total<std::int64_t>(underflowed_),
            .signal = total<double>(signal_),
            .noise = total<double>(noise_)};
  }

 private:
  using Doubles [[gnu::vector_size(kSums * sizeof(double))]] = double;
  using Counts [[gnu::vector_size(kSums * sizeof(std::int64_t))]] = std::int64_t;

  template <class T, class Vector>
  static T total(const Vector& sums) {
    T sum = sums[0];
    for (std::int64_t k = 1; k < kSums; ++k) sum += sums[k];
    return sum;
  }

  std::array<double, 256> values_;
  Largest largest_;
  Doubles signal_{}, noise_{};
  Counts underflowed_{}, clipped_{};
};

/// An operand's data along the direction in which it is contiguous, its inner one.
struct Direction {
  explicit Direction(const HostOrientation& of)
      : orientation(of), by_rows(of.operand.values.col_stride <= of.operand.values.row_stride) {
    const MatrixView& values = of.operand.values;
    const ScaleView& scales = of.operand.scales;
    outer_size = by_rows ? values.rows : values.cols;
    inner_size = by_rows ? values.cols : values.rows;
    outer_block = scales.per_tensor() ? outer_size : by_rows ? scales.block_rows : scales.block_cols;
    inner_block = scales.per_tensor() ? inner_size : by_rows ? scales.block_cols : scales.block_rows;
    data_outer = by_rows ? values.row_stride : values.col_stride;
    data_inner = by_rows ? values.col_stride : values.row_stride;
    x_outer = by_rows ? of.x_row : of.x_col;
    x_inner = by_rows ? of.x_col : of.x_row;
  }
  /// The inverse scales of `scale_inv.size()` elements from `inner` on.
  void read_scales(std::int64_t outer, std::int64_t inner, std::span<double> scale_inv) const {
    for (std::size_t i = 0; i < scale_inv.size();) {
      const std::int64_t at = inner + static_cast<std::int64_t>(i), left = inner_block - at % inner_block;
      const std::size_t end = std::min(i + static_cast<std::size_t>(left), scale_inv.size());
      const double scale = by_rows ? orientation.scale_inv_at(outer, at) : orientation.scale_inv_at(at, outer);
      for (; i < end; ++i) scale_inv[i] = scale;
    }
  }

  const HostOrientation& orientation;
  bool by_rows;
  std::int64_t outer_size, inner_size;
  std::int64_t outer_block, inner_block;  ///< elements of a scale along each direction
  std::int64_t data_outer, data_inner, x_outer, x_inner;
};

constexpr std::int64_t kTile = 64;

/// Counts the casts of outer indices from `begin` to `end`, in tiles, so that reads hit the cache also if values and
/// data are contiguous along different directions.
CastCounts count_part(const Direction& along, std::int64_t begin, std::int64_t end) {
  const HostOrientation& of = along.orientation;
  CastSums counts(of.operand.values.dtype);
  std::array<double, kTile> scale_inv{};
  for (std::int64_t outer = begin; outer < end; outer += kTile)
    for (std::int64_t inner = 0; inner < along.inner_size; inner += kTile) {
      const std::int64_t in_tile = std::min(kTile, along.inner_size - inner);
      for (std::int64_t o = outer; o < std::min(outer + kTile, end); ++o) {
        if (o == outer || o % along.outer_block == 0)
          along.read_scales(o, inner, std::span(scale_inv).first(static_cast<std::size_t>(in_tile)));
        counts.add(of.data.data() + o * along.data_outer + inner * along.data_inner, along.data_inner,
                   of.x.data() + o * along.x_outer + inner * along.x_inner, along.x_inner, scale_inv.data(), in_tile);
      }
    }
  return counts.sum((end - begin) * along.inner_size);
}

using CountPart = CastCounts (*)(const Direction&, std::int64_t begin, std::int64_t end);

#if defined(__x86_64__)
// Flattened, since only what is inlined here is compiled for more than the baseline.
[[gnu::target("avx2"), gnu::flatten]] CastCounts count_part_avx2(const Direction& along, std::int64_t begin,
                                                                 std::int64_t end) {
  return count_part(along, begin, end);
}

CountPart count_part_here() { return __builtin_cpu_supports("avx2") ? count_part_avx2 : count_part; }
#else
CountPart count_part_here() { return count_part; }
#endif

/// In parts that depend only on the size, so that the sums have the same bits on every machine; each has a thread.
CastCounts count(const HostOrientation& orientation) {
  constexpr std::int64_t kPartSize = std::int64_t{4} << 20, kMostParts = 4;
  const Direction along(orientation);
  const std::int64_t tiles = (along.outer_size + kTile - 1) / kTile;
  const std::int64_t parts = std::clamp(orientation.operand.values.numel() / kPartSize, std::int64_t{1}, kMostParts);
  const auto begin_of = [&](std::int64_t part) { return std::min(part * tiles / parts * kTile, along.outer_size); };
  std::vector<CastCounts> counts(static_cast<std::size_t>(parts));
  const CountPart part_of = count_part_here();
  const auto run = [&](std::int64_t part) {
    counts[static_cast<std::size_t>(part)] = part_of(along, begin_of(part), begin_of(part + 1));
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t part = 1; part < parts; ++part) threads.emplace_back(run, part);
    run(0);
  }
  CastCounts sum;
  for (const CastCounts& part : counts) sum += part;
  return sum;
}

/// The first `count` elements of `memory`, which grows to hold them and is not cleared.
template <class T>
std::span<T> first(std::vector<T>& memory, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (memory.size() < size) {
    memory = {};  // its elements need not move to where it grows
    memory.resize(size);
  }
  return std::span(memory).first(size);
}

}  // namespace

void CastCounter::saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) {
  const QuantFormat& format = made.format();
  const std::span<float> values = first(values_, x.numel());
  device.read_to(x, values);
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
    const std::span<std::byte> data = first(data_, orientation.data.bytes()),
                               scales = first(scales_, orientation.scale_inv.bytes());
    device.read_bytes_to(orientation.data, data);
    device.read_bytes_to(orientation.scale_inv, scales);
    counts += count({operand, data, scales, values, x_row, x_col});
  };
  if (has_rows) count_orientation(made.rowwise(), made.rowwise_operand(), made.cols(), 1);
  if (made.columnwise() && !(has_rows && format.columnwise_is_transpose()))
    count_orientation(made.columnwise(), made.columnwise_operand(false), 1, made.cols());
}

void CastCounter::finish() {
  values_ = {};
  data_ = {};
  scales_ = {};
}

CastCounts CastCounter::counts() const {
  CastCounts sum;
  for (const TensorCasts& tensor : tensors_)
    for (const auto& [step, counts] : tensor.by_step) sum += counts;
  return sum;
}

}  // namespace fp8lab
