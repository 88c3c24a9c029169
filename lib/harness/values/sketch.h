#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fp8lab {

inline constexpr std::size_t kSketchSums = 64;

/// A summary of an array, from which the distance of two arrays is estimated: 64 sums, into which its elements go with
/// signs. A row is 64 elements. A hash of the row's number gives each of its elements a sign, and the order in which
/// they go into the sums, so that neither equal rows nor an equal column of all rows cancel out.
/// `lib/subjects/fp8lab_subjects/watching/values.py` makes the same numbers.
/// Elements that are not finite are in `not_finite` only; the sums and the norm have 0 for them.
struct Sketch {
  double norm = 0.0;             ///< square root of the sum of squares
  std::uint64_t bits = 0;        ///< checksum of the elements' bits; comparable within one kind of recorder
  std::uint64_t not_finite = 0;  ///< checksum of positions and kinds of elements that are not finite; 0: there are none
  std::array<double, kSketchSums> sums{};
};

Sketch sketch_of(std::span<const float> values);

/// What relative_difference() returns at least if the bits differ. The sums of two sketches can be equal then.
inline constexpr double kLeastDifference = 1e-12;

/// The norm of the difference of two arrays of the same shape, relative to the larger one of their norms. 0 if their
/// bits are equal. It is an estimate otherwise, with a standard deviation of 9 %: each sum of
/// signed elements has the sum of squares as its expected square, and there are 64. Infinity if other elements are not
/// finite.
double relative_difference(const Sketch& a, const Sketch& b);

}  // namespace fp8lab
