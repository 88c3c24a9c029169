#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "backend/cpu/kernels.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/quantize/quantize_source.h"
#include "backend/cpu/rows.h"
#include "core/float8_format.h"
#include "core/shape.h"

// A matrix is cut into tiles that stay in cache. Each orientation walks a tile along the rows of its own storage: the
// matrix's rows or, for a transposed orientation, the rows of the transposed matrix. Rows go through the inner loops of
// quantize_loops.h, which do not handle NaN: segments that contain a NaN or Inf are cast again by the scalar functions
// that define the result.
namespace fp8lab::cpu {
namespace {

/// Most elements of a row that are cast at once; a multiple of every block length.
constexpr std::int64_t kSegment = 2048;
/// Side of a tile that is read both along and across its rows: in BF16 it fills half of a common L2 cache.
constexpr std::int64_t kSquare = 512;
/// Rows of a tile that both orientations read along its rows; its columns are a segment. A multiple of every block
/// height.
constexpr std::int64_t kStripe = 128;
/// From this many elements on, quantized data are written past the caches: they would be evicted before anything reads
/// them.
constexpr std::int64_t kStreamElems = std::int64_t{16} << 20;

struct Tile {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
  Tile transposed() const { return {.row = col, .rows = cols, .col = row, .cols = rows}; }
};

/// Prefetches the next segment. Hardware prefetching ends at a page boundary, and a segment of BF16 is one page.
/// Touching the next page early has its address translated before it is reached: a quarter less time with 4 KiB pages.
/// Blocks are measured before they are cast, so with blocks the next segment's data also have time to arrive: another
/// quarter.
void prefetch_next(const std::uint16_t* in, const std::uint8_t* data, int lines) {
  // Integers, not pointers: at the end of a matrix these addresses lie beyond it, which a prefetch may name but a
  // pointer may not.
  const auto next_in = reinterpret_cast<std::uintptr_t>(in) + sizeof *in * kSegment;
  for (int line = 0; line < lines; ++line)
    __builtin_prefetch(reinterpret_cast<const void*>(next_in + 64u * static_cast<unsigned>(line)));
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) + 2 * kSegment), 1);
}

/// Input and output of one orientation, in the order in which its data lie in memory: blocks that lie along the rows of
/// a transposed view run down the columns of the stored matrix.
struct OrientationTask {
  MatrixView in;
  OperandView out;
  QuantFormat format;
  bool crosses = false;  ///< written in another order than the caller's rows: the writer works on the transposed matrix

  OrientationTask transposed() const {
    OrientationTask task = {.in = in.transposed(), .out = out, .format = format, .crosses = !crosses};
    task.out.values = out.values.transposed();
    std::swap(task.out.scales.block_rows, task.out.scales.block_cols);
    std::swap(task.out.scales.row_stride, task.out.scales.col_stride);
    std::swap(task.format.block_rows, task.format.block_cols);
    return task;
  }
  OrientationTask in_stored_order() const {
    return out.values.col_stride != 1 && out.values.row_stride == 1 ? transposed() : *this;
  }
};

/// Writes one orientation of a quantized matrix, tile by tile.
class OrientationWriter {
 public:
  OrientationWriter(const OrientationTask& task, float tensor_scale, int slot)
      : format_(task.format),
        loops_(cpu::loops().quantize),
        cast_bf16_(format_.dtype == DType::kE4M3 ? loops_.cast_bf16_e4m3 : loops_.cast_bf16_e5m2),
        cast_f32_(format_.dtype == DType::kE4M3 ? loops_.cast_f32_e4m3 : loops_.cast_f32_e5m2),
        source_(task.in, loops_, slot),
        data_(task.out.values),
        scales_(task.out.scales),
        crosses_(task.crosses),
        streams_(data_.numel() >= kStreamElems && data_.col_stride == 1) {
    if (format_.per_tensor()) {
      tensor_scale_ = tensor_scale;
      *reinterpret_cast<float*>(scales_.data) = 1.0f / tensor_scale_;
    } else if (scales_.storage_elems > 0) {
      const auto bytes = static_cast<std::size_t>(scales_.storage_elems) * size_bytes(scales_.dtype);
      std::memset(scales_.data, 0, bytes);
    }
  }

  /// True if this orientation reads the matrix across its rows.
  bool crosses() const { return crosses_; }

  /// Casts a tile of the matrix. In both directions the tile must begin at a block boundary and end at one or at the
  /// end of the matrix.
  void write(const Tile& of_matrix) {
    const Tile tile = crosses_ ? of_matrix.transposed() : of_matrix;
    const std::int64_t step = std::max<std::int64_t>(format_.block_rows, 1);
    const std::int64_t band = source_.in_place() ? step : round_up(SourceRows::kBand, step);
    for (std::int64_t first = tile.row; first < tile.row + tile.rows; first += band) {
      const std::int64_t last = std::min(first + band, tile.row + tile.rows);
      for (std::int64_t col = tile.col; col < tile.col + tile.cols; col += kSegment) {
        const std::int64_t cols = std::min(kSegment, tile.col + tile.cols - col);
        source_.open(first, last - first, col, cols);
        for (std::int64_t row = first; row < last; row += step)
          write_rows({.row = row, .rows = std::min(step, last - row), .col = col, .cols = cols});
      }
    }
  }

  /// Bits of the largest magnitude of the input so far; meaningless under blocks.
  std::uint32_t amax() const { return amax_; }

 private:
  /// Casts `part`, whose rows are one block high.
  void write_rows(const Tile& part) {
    const std::int64_t run = format_.per_tensor() ? part.cols : format_.block_cols;
    std::array<float, kSegment> scales;
    bool exact = false;
    if (format_.per_tensor())
      scales[0] = tensor_scale_;
    else
      exact = scale_blocks(part, scales.data());
    for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
      std::uint8_t* data = data_.as<std::uint8_t>() + row * data_.row_stride + part.col * data_.col_stride;
      Cast cast = {.data = data, .count = part.cols, .run = run, .scales = scales.data(), .exact = exact};
      if (data_.col_stride == 1) {
        cast_row(source_(row), cast);
        continue;
      }
      std::array<std::uint8_t, kSegment> staged;
      cast.data = staged.data();
      cast_row(source_(row), cast);
      for (std::int64_t i = 0; i < part.cols; ++i) data[i * data_.col_stride] = staged[static_cast<std::size_t>(i)];
    }
  }

  /// Sets the scales of a row of blocks from their amaxes. True if one of the amaxes is not finite.
  bool scale_blocks(const Tile& part, float* scales) {
    const std::int64_t blocks = ceil_div(part.cols, format_.block_cols);
    std::array<std::uint32_t, kSegment> magnitudes;
    std::fill_n(magnitudes.begin(), blocks, 0u);
    for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
      const Elements elements = source_(row);
      if (elements.bf16 != nullptr)
        loops_.amax_bf16(elements.bf16, part.cols, format_.block_cols, magnitudes.data());
      else
        loops_.amax_f32(elements.f32, part.cols, format_.block_cols, magnitudes.data());
    }
    const std::int64_t first =
        part.row / format_.block_rows * scales_.row_stride + part.col / format_.block_cols * scales_.col_stride;
    const Float8Format fp8 = float8_format(format_.dtype);
    if (scales_.dtype == DType::kE8M0) {
      const bool floor = format_.scale == ScaleKind::kE8M0Floor;
      std::uint8_t* bytes = reinterpret_cast<std::uint8_t*>(scales_.data) + first;
      for (std::int64_t k = 0; k < blocks; ++k) {
        const float amax = float_from_bits(magnitudes[static_cast<std::size_t>(k)]);
        const std::uint8_t byte = floor ? e8m0_floor(amax, fp8.emax) : e8m0_rceil(amax, fp8.max);
        scales[k] = e8m0_multiplier(byte);
        bytes[k * scales_.col_stride] = byte;
      }
    } else {
      const bool power_of_two = format_.scale == ScaleKind::kF32PowerOfTwo;
      float* inverses = reinterpret_cast<float*>(scales_.data) + first;
      for (std::int64_t k = 0; k < blocks; ++k) {
        const float amax = float_from_bits(magnitudes[static_cast<std::size_t>(k)]);
        scales[k] =
            fp8lab::scale_from_amax(amax, fp8.max, format_.epsilon, power_of_two, largest_block_scale(source_.dtype()));
        inverses[k * scales_.col_stride] = 1.0f / scales[k];
      }
    }
    return std::any_of(magnitudes.begin(), magnitudes.begin() + blocks,
                       [](std::uint32_t magnitude) { return magnitude >= kFloatInfinityBits; });
  }

  struct Cast {
    std::uint8_t* data;
    std::int64_t count;
    std::int64_t run;
    const float* scales;
    bool exact;  ///< cast by the scalar functions: some block has an amax that is not finite
  };

  void cast_row(const Elements& in, const Cast& cast) {
    const bool past_caches = streams_ && reinterpret_cast<std::uintptr_t>(cast.data) % 64 == 0;
    const auto runs_of = [&](const auto* elements) {
      return CastRuns<std::remove_cvref_t<decltype(*elements)>>{.in = elements,
                                                                .data = cast.data,
                                                                .count = cast.count,
                                                                .run = cast.run,
                                                                .scales = cast.scales,
                                                                .past_caches = past_caches};
    };
    if (in.bf16 != nullptr && cast.count == kSegment) prefetch_next(in.bf16, cast.data, format_.per_tensor() ? 4 : 64);
    const std::uint32_t amax = in.bf16 != nullptr ? cast_bf16_(runs_of(in.bf16)) : cast_f32_(runs_of(in.f32));
    amax_ = std::max(amax_, amax);
    const bool usable_scale = !format_.per_tensor() || (tensor_scale_ > 0.0f && tensor_scale_ <= kFloatMax);
    if (cast.exact || amax >= kFloatInfinityBits || !usable_scale) cast_exactly(in, cast);
  }

  void cast_exactly(const Elements& in, const Cast& cast) const {
    visit_float8(format_.dtype, [&](auto format) {
      for (std::int64_t i = 0; i < cast.count; ++i) {
        const float x = in.bf16 != nullptr ? bf16_to_f32({in.bf16[i]}) : in.f32[i];
        cast.data[i] = encode<decltype(format)>(x * cast.scales[i / cast.run]);
      }
    });
  }

  QuantFormat format_;
  const QuantizeLoops& loops_;
  std::uint32_t (*cast_bf16_)(const CastRuns<std::uint16_t>&);
  std::uint32_t (*cast_f32_)(const CastRuns<float>&);
  SourceRows source_;
  MatrixView data_;
  ScaleView scales_;
  bool crosses_;
  bool streams_;
  float tensor_scale_ = 1.0f;
  std::uint32_t amax_ = 0;
};

/// The scale of the entire tensor; 1 under blocks, which have their own.
float tensor_scale(const QuantizeArgs& args) {
  if (!args.format.per_tensor()) return 1.0f;
  if (args.scale != nullptr) return *args.scale;
  const bool power_of_two = args.format.scale == ScaleKind::kF32PowerOfTwo;
  return fp8lab::scale_from_amax(*args.measured, float8_format(args.format.dtype).max, args.format.epsilon,
                                 power_of_two);
}

}  // namespace

void quantize(const QuantizeArgs& args, ExecContext&) {
  MatrixView in = args.in;
  OperandView rowwise = args.rowwise;
  const bool want_rowwise = rowwise.values.data != nullptr;
  const bool want_columnwise = args.columnwise.values.data != nullptr;
  if (args.format.per_tensor() && !want_columnwise) flatten_if_contiguous(in, rowwise.values);

  std::optional<OrientationWriter> rows;
  std::optional<OrientationWriter> columns;
  const float scale = tensor_scale(args);
  const auto emplace = [&](std::optional<OrientationWriter>& writer, const OrientationTask& task, int slot) {
    writer.emplace(task.in_stored_order(), scale, slot);
  };
  if (want_rowwise) emplace(rows, {.in = in, .out = rowwise, .format = args.format}, 0);
  if (want_columnwise)
    emplace(columns, {.in = in.transposed(), .out = args.columnwise, .format = args.format, .crosses = true}, 1);

  const bool crosses = (rows && rows->crosses()) || (columns && columns->crosses());
  const bool twice = rows && columns;
  const std::int64_t tile_rows = crosses ? kSquare : twice ? kStripe : std::max<std::int64_t>(in.rows, 1);
  const std::int64_t tile_cols = crosses ? kSquare : twice ? kSegment : std::max<std::int64_t>(in.cols, 1);
  for (std::int64_t row = 0; row < in.rows; row += tile_rows)
    for (std::int64_t col = 0; col < in.cols; col += tile_cols) {
      const Tile tile = {row, std::min(tile_rows, in.rows - row), col, std::min(tile_cols, in.cols - col)};
      if (rows) rows->write(tile);
      if (columns) columns->write(tile);
    }

  // Stores past the caches are unordered until this fence.
  std::atomic_thread_fence(std::memory_order_seq_cst);

  if (args.amax != nullptr && args.format.per_tensor()) {
    const std::uint32_t seen = rows ? rows->amax() : columns ? columns->amax() : 0;
    *args.amax = float_from_bits(std::max(float_bits(*args.amax) & kFloatMagnitudeMask, seen));
  }
}

}  // namespace fp8lab::cpu
