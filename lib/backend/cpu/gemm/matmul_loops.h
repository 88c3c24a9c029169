#pragma once

#include <cstdint>

#include "backend/cpu/gemm/matmul.h"

// The inner loops of matrix products, compiled once per instruction set. Packing operands into panels removes their
// layout; tiles of the result are then computed in registers.
namespace fp8lab::cpu {

/// The part of an operand to pack: `rows` x `k`.
struct PackArgs {
  MatmulOperand from;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  float* panels = nullptr;
};

/// c (+)= a * b^T for packed operands, m x k and n x k. The k products of an element are summed in order, beginning
/// with 0. If `add`, that sum is added to c, else it replaces c. A kFastTensorCore accumulator goes on from c instead.
struct PanelProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const float* a = nullptr;  ///< panels of tile_rows
  const float* b = nullptr;  ///< panels of tile_cols, aligned to a cache line
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
  bool add = false;
  Sums sums = Sums::kF32;
};

/// Columns of `b` and of `c` in a TileProduct come in groups of this many.
inline constexpr std::int64_t kGroup = 8;

/// c[m, n] (+)= a[m, k] * b[k, n] of matrices that fit in a cache: the k products of an element are added in order, and
/// their sum is then added to c. Rows of `a` and `c` must be readable up to a multiple of 4, columns of `b` and `c` up
/// to a multiple of kGroup.
struct TileProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const float* a = nullptr;
  std::int64_t a_row_stride = 0;
  std::int64_t a_col_stride = 1;
  const float* b = nullptr;  ///< element (i, j) at (j / kGroup) * b_group_stride + i * b_row_stride + j % kGroup
  std::int64_t b_group_stride = kGroup;
  std::int64_t b_row_stride = 0;
  float* c = nullptr;
  std::int64_t c_row_stride = 0;
  bool accumulate = true;
};

/// A panel holds `width` rows of an operand as [k, width]; rows beyond the operand's last are zero.
struct MatmulLoops {
  std::int64_t tile_rows;
  std::int64_t tile_cols;
  void (*pack_a)(const PackArgs& args);  ///< panels of tile_rows
  void (*pack_b)(const PackArgs& args);  ///< panels of tile_cols
  void (*multiply)(const PanelProduct& product);
  void (*multiply_unpacked)(const TileProduct& product);
};

// One per source file; the build decides which exist.
extern const MatmulLoops kMatmulLoopsBaseline;
extern const MatmulLoops kMatmulLoopsAvx2;
extern const MatmulLoops kMatmulLoopsAvx512;
extern const MatmulLoops kMatmulLoopsAvx512Short;  ///< the same registers, of which each vector uses half

}  // namespace fp8lab::cpu
