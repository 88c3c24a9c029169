#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab {

/// The column that stress() makes huge, and by how many binades. Eight bits hold about 18 binades in E4M3 and 32 in
/// E5M2. With this column, most of an input becomes subnormal or 0 in E4M3, and gradients of other columns stay normal
/// in E5M2 only if its range is used in full.
struct HugeColumn {
  std::int64_t column;
  int binades;
};
inline constexpr HugeColumn kStressedInput{.column = 3, .binades = 10};
inline constexpr HugeColumn kStressedTarget{.column = 5, .binades = 24};

/// Changes normally distributed values [rows, cols] so that they excite every rule of a cast: a quarter of the columns
/// has magnitudes that fall by up to 21 binades from row to row, a quarter falls by up to 11 from column to column, a
/// quarter has values halfway between two numbers of E4M3 (under a scale that is a power of two), some are zero, and
/// one is huge.
void stress(std::vector<float>& values, std::int64_t cols, const HugeColumn& huge);

}  // namespace fp8lab
