#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/gemm/matmul_loops.h"

// The source that every variant of MatmulLoops compiles for its own instruction set.
//
// Hazard: the linker keeps one copy of an inline function, and it could be a copy compiled for an instruction set that
// older machines lack. Rule: everything here has internal linkage, and nothing calls an inline function of another
// header.
namespace fp8lab::cpu {
namespace {

/// Four floats: the widest vector that every x86-64 and every Arm processor has.
using Quad = float __attribute__((vector_size(16)));

template <class T>
inline T load(const float* from) {
  T vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
template <class T>
inline void store(T vector, float* to) {
  std::memcpy(to, &vector, sizeof vector);
}

/// out[j * out_stride + i] = in[i * in_stride + j] for i and j below 4.
inline void transpose_4x4(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride) {
  const Quad r0 = load<Quad>(in), r1 = load<Quad>(in + in_stride);
  const Quad r2 = load<Quad>(in + 2 * in_stride), r3 = load<Quad>(in + 3 * in_stride);
  const Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  store(__builtin_shufflevector(low01, low23, 0, 1, 4, 5), out);
  store(__builtin_shufflevector(low01, low23, 2, 3, 6, 7), out + out_stride);
  store(__builtin_shufflevector(high01, high23, 0, 1, 4, 5), out + 2 * out_stride);
  store(__builtin_shufflevector(high01, high23, 2, 3, 6, 7), out + 3 * out_stride);
}

/// Packs one panel of `rows` <= kWidth rows whose elements are contiguous along k.
template <std::int64_t kWidth>
inline void pack_rows(const float* in, std::int64_t in_stride, std::int64_t rows, std::int64_t k, float* panel) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    const float* quad = in + i * in_stride;
    std::int64_t p = 0;
    for (; p + 4 <= k; p += 4) transpose_4x4(quad + p, in_stride, panel + p * kWidth + i, kWidth);
    for (; p < k; ++p)
      for (std::int64_t r = 0; r < 4; ++r) panel[p * kWidth + i + r] = quad[r * in_stride + p];
  }
  for (; i < rows; ++i)
    for (std::int64_t p = 0; p < k; ++p) panel[p * kWidth + i] = in[i * in_stride + p];
  for (; i < kWidth; ++i)
    for (std::int64_t p = 0; p < k; ++p) panel[p * kWidth + i] = 0.0f;
}

/// Packs one panel of `rows` <= kWidth rows from a transposed operand, in which the rows' elements of one k lie side by
/// side.
template <std::int64_t kWidth>
inline void pack_columns(const float* in, std::int64_t in_stride, std::int64_t rows, std::int64_t k, float* panel) {
  for (std::int64_t p = 0; p < k; ++p) {
    const float* from = in + p * in_stride;
    float* to = panel + p * kWidth;
    if (rows == kWidth) {
      std::memcpy(to, from, kWidth * sizeof(float));
      continue;
    }
    for (std::int64_t i = 0; i < kWidth; ++i) to[i] = i < rows ? from[i] : 0.0f;
  }
}

template <std::int64_t kWidth>
void pack(const PackArgs& args) {
  const std::int64_t stride = args.from.row_stride;
  float* panel = args.panels;
  for (std::int64_t begin = 0; begin < args.rows; begin += kWidth, panel += kWidth * args.k) {
    const std::int64_t rows = args.rows - begin < kWidth ? args.rows - begin : kWidth;
    if (args.from.transposed)
      pack_columns<kWidth>(args.from.data + begin, stride, rows, args.k, panel);
    else
      pack_rows<kWidth>(args.from.data + begin * stride, stride, rows, args.k, panel);
  }
}

constexpr std::int64_t kRowsAtOnce = 4;  ///< rows of a TileProduct

template <class Set>
constexpr std::int64_t kFloatsOf = sizeof(typename Set::Vector) / sizeof(float);

/// Computes a tile of the result in registers: kRows rows of kVectors vectors each. Not inlined: compilers that inline
/// it keep addresses in registers across the loop, and some of the sums in memory.
template <class Set>
__attribute__((noinline)) void multiply_tile(const float* a, const float* b, std::int64_t k, float* c,
                                             std::int64_t c_row_stride, bool add) {
  using Vector = typename Set::Vector;
  constexpr std::int64_t kFloats = kFloatsOf<Set>;
  Vector sums[Set::kRows][Set::kVectors] = {};
  for (std::int64_t p = 0; p < k; ++p, a += Set::kRows, b += Set::kVectors * kFloats) {
    Vector row_of_b[Set::kVectors];
    for (std::int64_t v = 0; v < Set::kVectors; ++v) row_of_b[v] = load<Vector>(b + v * kFloats);
    for (std::int64_t row = 0; row < Set::kRows; ++row) {
      const Vector broadcast = a[row] - Vector{};  // broadcasts a[row]; subtracting +0 keeps every value, -0 too
      for (std::int64_t v = 0; v < Set::kVectors; ++v) sums[row][v] += broadcast * row_of_b[v];
    }
  }
  for (std::int64_t row = 0; row < Set::kRows; ++row, c += c_row_stride)
    for (std::int64_t v = 0; v < Set::kVectors; ++v) {
      float* to = c + v * kFloats;
      store(add ? load<Vector>(to) + sums[row][v] : sums[row][v], to);
    }
}

/// The products of four rows and kGroups groups of columns from `j` on, summed in registers.
template <class Vector, std::int64_t kGroups>
__attribute__((noinline)) void multiply_groups(const TileProduct& p, std::int64_t i, std::int64_t j) {
  constexpr std::int64_t kRows = kRowsAtOnce, kFloats = sizeof(Vector) / sizeof(float);
  constexpr std::int64_t kOfAGroup = kGroup / kFloats, kVectors = kGroups * kOfAGroup;
  const float* a = p.a + i * p.a_row_stride;
  const float* b = p.b + j / kGroup * p.b_group_stride;
  Vector sums[kRows][kVectors] = {};
  for (std::int64_t k = 0; k < p.k; ++k, a += p.a_col_stride, b += p.b_row_stride) {
    Vector row_of_b[kVectors];
    for (std::int64_t v = 0; v < kVectors; ++v)
      row_of_b[v] = load<Vector>(b + v / kOfAGroup * p.b_group_stride + v % kOfAGroup * kFloats);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const Vector broadcast = a[row * p.a_row_stride] - Vector{};
      for (std::int64_t v = 0; v < kVectors; ++v) sums[row][v] += broadcast * row_of_b[v];
    }
  }
  float* c = p.c + i * p.c_row_stride + j;
  for (std::int64_t row = 0; row < kRows; ++row, c += p.c_row_stride)
    for (std::int64_t v = 0; v < kVectors; ++v) {
      float* to = c + v * kFloats;
      store(p.accumulate ? load<Vector>(to) + sums[row][v] : sums[row][v], to);
    }
}

/// The columns from `j` on, in steps of kGroups groups, or of fewer if fewer are left.
template <class Vector, std::int64_t kGroups>
void multiply_columns(const TileProduct& p, std::int64_t j) {
  for (; j + (kGroups - 1) * kGroup < p.n; j += kGroups * kGroup)
    for (std::int64_t i = 0; i < p.m; i += kRowsAtOnce) multiply_groups<Vector, kGroups>(p, i, j);
  if constexpr (kGroups > 1) multiply_columns<Vector, kGroups / 2>(p, j);
}

/// The vectors of a row of the result, and what a tensor core's accumulator holds of them.
template <class Vector, int kVectors>
struct Accumulator {
  using Ints = decltype(Vector{} < Vector{});  // 32-bit integers
  static constexpr std::int64_t kFloats = sizeof(Vector) / sizeof(float);
  static constexpr std::int32_t kInfinity = 0x7F800000, kFractionBits = 23;

  static Ints magnitude(Vector x) { return (Ints)x & 0x7FFFFFFF; }
  static Ints larger(Ints a, Ints b) { return a > b ? a : b; }

  Vector held[kVectors];
  Ints special[kVectors] = {};  ///< not zero in lanes that met an Inf or NaN

  /// One instruction: `count` products, whose factors are a[p * a_stride] and the vectors from b + kVectors kFloats p
  /// on.
  void add(const float* a, std::int64_t a_stride, const float* b, std::int64_t count) {
    Ints largest[kVectors];
    for (int h = 0; h < kVectors; ++h) largest[h] = magnitude(held[h]);
    for (std::int64_t p = 0; p < count; ++p)
      for (int h = 0; h < kVectors; ++h) largest[h] = larger(largest[h], magnitude(product(a, a_stride, b, p, h)));
    // Exponents from which the quantum is a normal float.
    constexpr std::int32_t kLowest = (kTensorCoreBits + 1) << kFractionBits;
    Ints sums[kVectors];
    Vector quantum[kVectors], inverse[kVectors];
    for (int h = 0; h < kVectors; ++h) {
      special[h] |= largest[h] >= kInfinity;
      const Ints exponent = larger(largest[h] & kInfinity, Ints{} + kLowest);
      quantum[h] = (Vector)(exponent - (kTensorCoreBits << kFractionBits));
      inverse[h] = (Vector)(((254 + kTensorCoreBits) << kFractionBits) - exponent);
      sums[h] = truncated(held[h] * inverse[h]);
    }
    for (std::int64_t p = 0; p < count; ++p)
      for (int h = 0; h < kVectors; ++h) sums[h] += truncated(product(a, a_stride, b, p, h) * inverse[h]);
    for (int h = 0; h < kVectors; ++h) held[h] = __builtin_convertvector(sums[h], Vector) * quantum[h];
  }

  static Vector product(const float* a, std::int64_t a_stride, const float* b, std::int64_t p, int h) {
    const Vector broadcast = a[p * a_stride] - Vector{};
    return broadcast * load<Vector>(b + (kVectors * p + h) * kFloats);
  }
  static Ints truncated(Vector x) { return __builtin_convertvector(x, Ints); }
};

/// multiply_tile() with the sums of a tensor core.
template <class Set>
inline void multiply_tile_on_tensor_core(const float* a, const float* b, std::int64_t k, float* c,
                                         std::int64_t c_row_stride, bool add, bool fast) {
  using Vector = typename Set::Vector;
  constexpr std::int64_t kFloats = kFloatsOf<Set>, kVectors = Set::kVectors;
  for (std::int64_t row = 0; row < Set::kRows; ++row, ++a, c += c_row_stride) {
    Vector before[kVectors];
    Accumulator<Vector, kVectors> sum;
    for (std::int64_t h = 0; h < kVectors; ++h) {
      before[h] = add ? load<Vector>(c + h * kFloats) : Vector{};
      sum.held[h] = fast ? before[h] : Vector{};
    }
    for (std::int64_t p = 0; p < k; p += kTensorCoreStep)
      sum.add(a + p * Set::kRows, Set::kRows, b + kVectors * kFloats * p,
              k - p < kTensorCoreStep ? k - p : kTensorCoreStep);
    for (std::int64_t h = 0; h < kVectors; ++h) {
      store(fast ? sum.held[h] : before[h] + sum.held[h], c + h * kFloats);
      for (std::int64_t lane = 0; lane < kFloats; ++lane) {
        if (sum.special[h][lane] == 0) continue;
        float plain = before[h][lane];
        for (std::int64_t p = 0; p < k; ++p) plain += a[p * Set::kRows] * b[(kVectors * p + h) * kFloats + lane];
        c[h * kFloats + lane] = plain;
      }
    }
  }
}

template <class Set>
void multiply(const PanelProduct& args) {
  const bool fast = args.sums == Sums::kFastTensorCore;
  const auto multiply_one = [&](const float* a, const float* b, float* c, std::int64_t c_row_stride, bool add) {
    if (args.sums == Sums::kF32)
      multiply_tile<Set>(a, b, args.k, c, c_row_stride, add);
    else
      multiply_tile_on_tensor_core<Set>(a, b, args.k, c, c_row_stride, add, fast);
  };
  constexpr std::int64_t kRows = Set::kRows, kCols = Set::kVectors * kFloatsOf<Set>;
  for (std::int64_t j = 0; j < args.n; j += kCols) {
    const float* b = args.b + j * args.k;
    const std::int64_t cols = args.n - j < kCols ? args.n - j : kCols;
    for (std::int64_t i = 0; i < args.m; i += kRows) {
      const float* a = args.a + i * args.k;
      float* c = args.c + i * args.c_row_stride + j;
      const std::int64_t rows = args.m - i < kRows ? args.m - i : kRows;
      if (rows == kRows && cols == kCols) {
        multiply_one(a, b, c, args.c_row_stride, args.add);
        continue;
      }
      float tile[kRows * kCols] = {};
      for (std::int64_t row = 0; args.add && row < rows; ++row)
        for (std::int64_t col = 0; col < cols; ++col) tile[row * kCols + col] = c[row * args.c_row_stride + col];
      multiply_one(a, b, tile, kCols, args.add);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t col = 0; col < cols; ++col) c[row * args.c_row_stride + col] = tile[row * kCols + col];
    }
  }
}

template <class Set>
void multiply_unpacked(const TileProduct& product) {
  multiply_columns<typename Set::GroupVector, Set::kGroups>(product, 0);
}

/// `Set` names the instruction set's vector type, and a tile that fits in its registers with the operands: kRows rows
/// of kVectors vectors; for a TileProduct, kRowsAtOnce rows of kGroups groups in vectors of GroupVector.
template <class Set>
constexpr MatmulLoops make_matmul_loops() {
  constexpr std::int64_t kCols = Set::kVectors * kFloatsOf<Set>;
  return {.tile_rows = Set::kRows,
          .tile_cols = kCols,
          .pack_a = pack<Set::kRows>,
          .pack_b = pack<kCols>,
          .multiply = multiply<Set>,
          .multiply_unpacked = multiply_unpacked<Set>};
}

}  // namespace
}  // namespace fp8lab::cpu
