#include <algorithm>
#include <cstring>

#include "backend/cpu/column_sums.h"
#include "backend/cpu/elementwise/normal_values.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/transpose_bytes.h"
#include "core/counter_rng.h"
#include "core/float_bits.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kA, kB };

/// Copies elements bit for bit, whatever their type, between matrices of any strides.
template <class Bits>
void copy_bits(const MatrixView& in, const MatrixView& out) {
  for (std::int64_t i = 0; i < in.rows; ++i) {
    const Bits* from = in.as<const Bits>() + i * in.row_stride;
    Bits* to = out.as<Bits>() + i * out.row_stride;
    if (in.col_stride == 1 && out.col_stride == 1) {
      if (in.cols > 0) std::memmove(to, from, static_cast<std::size_t>(in.cols) * sizeof(Bits));
      continue;
    }
    for (std::int64_t j = 0; j < in.cols; ++j) to[j * out.col_stride] = from[j * in.col_stride];
  }
}

void copy_bits(const MatrixView& in, const MatrixView& out) {
  const std::size_t size = size_bytes(in.dtype);
  if (in.contiguous() && out.contiguous()) {
    if (in.numel() > 0) std::memmove(out.data, in.data, static_cast<std::size_t>(in.numel()) * size);
    return;
  }
  if (size == 1 && in.col_stride == 1 && out.row_stride == 1)
    return transpose_bytes({.in = in.as<const std::uint8_t>(),
                            .in_stride = in.row_stride,
                            .rows = in.rows,
                            .cols = in.cols,
                            .out = out.as<std::uint8_t>(),
                            .out_stride = out.col_stride});
  if (size == 1 && in.row_stride == 1 && out.col_stride == 1) return copy_bits(in.transposed(), out.transposed());
  switch (size) {
    case 1: return copy_bits<std::uint8_t>(in, out);
    case 2: return copy_bits<std::uint16_t>(in, out);
    case 4: return copy_bits<std::uint32_t>(in, out);
    default: return copy_bits<std::uint64_t>(in, out);
  }
}

/// Sets all elements to zero; +0 has all bytes zero in every type.
void clear(const MatrixView& out) {
  const auto element = static_cast<std::int64_t>(size_bytes(out.dtype));
  const bool full_rows = out.col_stride == 1;
  for (std::int64_t row = 0; row < out.rows && out.cols > 0; ++row) {
    std::byte* const at = out.data + row * out.row_stride * element;
    if (full_rows)
      std::memset(at, 0, static_cast<std::size_t>(out.cols * element));
    else
      for (std::int64_t col = 0; col < out.cols; ++col)
        std::memset(at + col * out.col_stride * element, 0, static_cast<std::size_t>(element));
  }
}

/// Calls take(j, word) for the random words of indices first ... first + count - 1; one Philox block holds four words.
template <class Take>
void for_each_word(const CounterRng& rng, std::uint64_t first, std::int64_t count, const Take& take) {
  std::uint64_t block = first / 4;
  std::uint64_t word = first % 4;
  for (std::int64_t j = 0; j < count; ++block, word = 0) {
    const PhiloxBlock drawn = rng.block(block);
    for (; word < 4 && j < count; ++word, ++j) take(j, drawn.words[word]);
  }
}

std::uint64_t global_index(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(cols) + static_cast<std::uint64_t>(col);
}

}  // namespace

void fill(const FillArgs& args, ExecContext&) {
  MatrixView out = args.out;
  flatten_if_contiguous(out);
  if (float_bits(args.value) == 0) return clear(out.row_stride == 1 && out.rows > 1 ? out.transposed() : out);
  float* values = scratch(kA, kRun);
  std::fill_n(values, kRun, args.value);
  for_each_run(out,
               [&](std::int64_t row, std::int64_t col, std::int64_t count) { store(values, count, out, row, col); });
}

void scale(const ScaleArgs& args, ExecContext&) {
  MatrixView x = args.values;
  flatten_if_contiguous(x);
  float* values = scratch(kA, kRun);
  for_each_run(x, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(x, row, col, count, values);
    for (std::int64_t j = 0; j < count; ++j) values[j] *= args.factor;
    store(values, count, x, row, col);
  });
}

void random(const RandomArgs& args, ExecContext&) {
  const CounterRng rng(args.seed, args.stream);
  float* values = scratch(kA, kRun);
  for_each_run(args.out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    const std::uint64_t first = global_index(args.row_offset + row, args.out.cols, col);
    if (args.normal) {
      normal_values(rng, first, count, values);
      for (std::int64_t j = 0; j < count; ++j) values[j] *= args.scale;
    } else {
      for_each_word(rng, first, count,
                    [&](std::int64_t j, std::uint32_t word) { values[j] = CounterRng::to_unit(word) * args.scale; });
    }
    store(values, count, args.out, row, col);
  });
}

void cast(const CastArgs& args, ExecContext&) {
  if (args.in.dtype == args.out.dtype) return copy_bits(args.in, args.out);
  MatrixView in = args.in;
  MatrixView out = args.out;
  flatten_if_contiguous(in, out);
  float* values = scratch(kA, kRun);
  for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(in, row, col, count, values);
    store(values, count, out, row, col);
  });
}

void add(const AddArgs& args, ExecContext&) {
  MatrixView lhs = args.a;
  MatrixView rhs = args.b;
  MatrixView out = args.out;
  flatten_if_contiguous(lhs, rhs, out);
  float* a = scratch(kA, kRun);
  float* b = scratch(kB, kRun);
  for_each_run(out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(lhs, row, col, count, a);
    load(rhs, row, col, count, b);
    for (std::int64_t j = 0; j < count; ++j) a[j] = args.alpha * a[j] + args.beta * b[j];
    store(a, count, out, row, col);
  });
}

void column_sum(const ColumnSumArgs& args, ExecContext&) {
  const std::int64_t cols = args.in.cols;
  const RowReader rows(args.in, kA);
  ColumnSums sums(args.in.rows, cols, kB);
  for (std::int64_t i = 0; i < args.in.rows; ++i, sums.end_row()) {
    const float* row = rows(i);
    float* part = sums.part();
    for (std::int64_t j = 0; j < cols; ++j) part[j] += row[j];
  }
  store(sums.total(), cols, args.out, 0, 0);
}

void dropout(const DropoutArgs& args, ExecContext&) {
  const CounterRng rng(args.seed, args.stream);
  const std::uint32_t dropped = in_65536ths(args.probability);
  const float keep = static_cast<float>(65536u - dropped) * 0x1p-16f;
  float* values = scratch(kA, kRun);
  for_each_run(args.in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(args.in, row, col, count, values);
    const std::uint64_t first = global_index(args.row_offset + row, args.in.cols, col);
    // A word is for two elements, of which a run may have one.
    const std::uint64_t low = first % 2, words = (static_cast<std::uint64_t>(count) + low + 1) / 2;
    for_each_word(rng, first / 2, static_cast<std::int64_t>(words), [&](std::int64_t w, std::uint32_t word) {
      for (unsigned high = 0; high < 2; ++high) {
        const std::int64_t j = 2 * w + static_cast<std::int64_t>(high) - static_cast<std::int64_t>(low);
        if (j >= 0 && j < count) values[j] = CounterRng::half_of(word, high) >= dropped ? values[j] / keep : 0.0f;
      }
    });
    store(values, count, args.out, row, col);
  });
}

}  // namespace fp8lab::cpu
