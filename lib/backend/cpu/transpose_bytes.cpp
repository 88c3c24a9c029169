#include "backend/cpu/transpose_bytes.h"

#include <algorithm>
#include <cstring>

namespace fp8lab::cpu {
namespace {

/// Side of a tile: one cache line, so that each line is read and written once and in full.
constexpr std::int64_t kTile = 64;
/// Side of the squares that are transposed in registers.
constexpr int kSquare = 16;
/// Columns that are finished before the next rows are begun, so that the pages of their output rows stay in the TLB.
constexpr std::int64_t kBand = 1024;

using Row = std::uint8_t __attribute__((vector_size(kSquare)));

/// Four rounds of interleaving row i with row i + 8 rotate the bits of the index (row, column) by half of them, which
/// is the transpose.
void transpose_square(const std::uint8_t* in, std::uint8_t* out) {
  Row rows[kSquare], next[kSquare];
  for (int i = 0; i < kSquare; ++i) std::memcpy(&rows[i], in + i * kTile, sizeof(Row));
  const auto round = [](const Row* from, Row* to) {
    for (int i = 0; i < kSquare / 2; ++i) {
      const Row a = from[i], b = from[i + kSquare / 2];
      to[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      to[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
  };
  round(rows, next);
  round(next, rows);
  round(rows, next);
  round(next, rows);
  for (int i = 0; i < kSquare; ++i) std::memcpy(out + i * kTile, &rows[i], sizeof(Row));
}

/// Goes through two tiles of contiguous lines: rows a power of two apart would compete for the same few sets of the
/// cache.
void transpose_tile(const ByteTranspose& args, std::int64_t row, std::int64_t col) {
  alignas(64) std::uint8_t in[kTile * kTile];
  alignas(64) std::uint8_t out[kTile * kTile];
  for (std::int64_t r = 0; r < kTile; ++r)
    std::memcpy(in + r * kTile, args.in + (row + r) * args.in_stride + col, kTile);
  // Hardware prefetching does not recognise accesses a row apart.
  for (std::int64_t c = 0; c < kTile; ++c) __builtin_prefetch(args.out + (col + c) * args.out_stride + row, 1);
  for (std::int64_t r = 0; r < kTile; r += kSquare)
    for (std::int64_t c = 0; c < kTile; c += kSquare) transpose_square(in + r * kTile + c, out + c * kTile + r);
  for (std::int64_t c = 0; c < kTile; ++c)
    std::memcpy(args.out + (col + c) * args.out_stride + row, out + c * kTile, kTile);
}

void transpose_each(const ByteTranspose& args, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols) {
  for (std::int64_t c = col; c < col + cols; ++c)
    for (std::int64_t r = row; r < row + rows; ++r) args.out[c * args.out_stride + r] = args.in[r * args.in_stride + c];
}

}  // namespace

void transpose_bytes(const ByteTranspose& args) {
  const std::int64_t full_rows = args.rows / kTile * kTile;
  const std::int64_t full_cols = args.cols / kTile * kTile;
  for (std::int64_t band = 0; band < full_cols; band += kBand)
    for (std::int64_t row = 0; row < full_rows; row += kTile)
      for (std::int64_t col = band; col < std::min(band + kBand, full_cols); col += kTile)
        transpose_tile(args, row, col);
  transpose_each(args, 0, full_rows, full_cols, args.cols - full_cols);
  transpose_each(args, full_rows, args.rows - full_rows, 0, args.cols);
}

}  // namespace fp8lab::cpu
