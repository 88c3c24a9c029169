#pragma once

#include <cstdint>
#include <vector>

#include "reference/step_function.h"

namespace fp8lab::reference {

enum class Specials {
  kIeee,     ///< the largest exponent field means Inf and NaN
  kNanOnly,  ///< only the pattern of all ones means NaN, there is no Inf
};

/// What a conversion does outside the finite range.
enum class Conversion {
  kIeee,       ///< overflow to Inf from half a quantum above the largest value; quiet NaN of the input's sign
  kSatFinite,  ///< overflow and Inf to the largest finite value; NaN to the positive pattern of all ones
};

struct SmallFloatLayout {
  int exponent_bits;
  int mantissa_bits;
  Specials specials;
  Conversion conversion;
};

inline constexpr SmallFloatLayout kE4M3Layout{4, 3, Specials::kNanOnly, Conversion::kSatFinite};
inline constexpr SmallFloatLayout kE5M2Layout{5, 2, Specials::kIeee, Conversion::kSatFinite};
inline constexpr SmallFloatLayout kFloat16Layout{5, 10, Specials::kIeee, Conversion::kIeee};
inline constexpr SmallFloatLayout kBFloat16Layout{8, 7, Specials::kIeee, Conversion::kIeee};

/// A format of at most 16 bits by its definition: a table of all values in double precision, and rounding as a search
/// in that table. The sign is bit exponent_bits + mantissa_bits.
class SmallFloat {
 public:
  explicit SmallFloat(SmallFloatLayout layout);

  double decode(std::uint32_t code) const;
  /// Nearest value, ties to the even code; exact for every double.
  std::uint32_t encode(double x) const;
  /// encode() of all floats of one sign, by magnitude.
  StepFunction steps(bool negative) const;

  std::uint32_t max_code() const { return max_code_; }
  double max() const { return values_[max_code_]; }

 private:
  std::uint32_t sign_mask() const { return 1u << (layout_.exponent_bits + layout_.mantissa_bits); }
  std::uint32_t nan_code(bool negative) const;

  SmallFloatLayout layout_;
  std::uint32_t max_code_;
  /// The values of the bit patterns 0 ... max_code_; under IEEE conversion also of the next pattern, as if it were
  /// finite.
  std::vector<double> values_;
};

}  // namespace fp8lab::reference
