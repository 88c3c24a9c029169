#include "backend/cpu/gemm/matmul.h"

#include <algorithm>

#include "backend/cpu/loops.h"
#include "backend/cpu/rows.h"
#include "core/shape.h"

namespace fp8lab::cpu {
namespace {

constexpr int kSlotA = 5;  // distinct from the slots of gemm.cpp, which are in use at the same time
constexpr int kSlotB = 6;

// Sizes of blocks: a block of `a` stays in the L2 cache while the panels of `b` are read one after another, each from
// the L1 cache.
constexpr std::int64_t kBlockRows = 192;
constexpr std::int64_t kBlockCols = 2048;

/// `count` floats of scratch, aligned to a cache line: a vector that straddles two lines costs two loads.
float* aligned_scratch(int slot, std::int64_t count) {
  constexpr std::uintptr_t kCacheLine = 64;
  float* first = scratch(slot, count + static_cast<std::int64_t>(kCacheLine / sizeof(float)));
  return first + (-reinterpret_cast<std::uintptr_t>(first) % kCacheLine) / sizeof(float);
}

/// The sub-matrix of `operand` that begins at (row, k).
MatmulOperand part(MatmulOperand operand, std::int64_t row, std::int64_t k) {
  operand.data += operand.transposed ? k * operand.row_stride + row : row * operand.row_stride + k;
  return operand;
}

}  // namespace

void matmul(const MatmulArgs& args) { matmul(args, loops().matmul); }

void matmul(const MatmulArgs& args, const MatmulLoops& loops) {
  if (args.k == 0)
    for (std::int64_t i = 0; i < args.m; ++i) std::fill_n(args.c + i * args.c_row_stride, args.n, 0.0f);

  const std::int64_t block_rows = std::min(kBlockRows, round_up(args.m, loops.tile_rows));
  const std::int64_t block_cols = std::min(kBlockCols, round_up(args.n, loops.tile_cols));
  const std::int64_t longest = args.sums == Sums::kTensorCore ? kTensorCoreSpan : kMatmulRun;
  const std::int64_t run = std::min(longest, args.k);
  float* a = aligned_scratch(kSlotA, block_rows * run);
  float* b = aligned_scratch(kSlotB, block_cols * run);
  for (std::int64_t j = 0; j < args.n; j += block_cols) {
    const std::int64_t cols = std::min(block_cols, args.n - j);
    for (std::int64_t p = 0; p < args.k; p += longest) {
      const std::int64_t k = std::min(longest, args.k - p);
      loops.pack_b({.from = part(args.b, j, p), .rows = cols, .k = k, .panels = b});
      for (std::int64_t i = 0; i < args.m; i += block_rows) {
        const std::int64_t rows = std::min(block_rows, args.m - i);
        loops.pack_a({.from = part(args.a, i, p), .rows = rows, .k = k, .panels = a});
        loops.multiply({.m = rows,
                        .n = cols,
                        .k = k,
                        .a = a,
                        .b = b,
                        .c = args.c + i * args.c_row_stride + j,
                        .c_row_stride = args.c_row_stride,
                        .add = p > 0,
                        .sums = args.sums});
      }
    }
  }
}

}  // namespace fp8lab::cpu
