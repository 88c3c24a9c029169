#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "recipe/recipe.h"

/// Quantization by its definition, element by element in double precision. A sum, product or quotient of floats that is
/// computed in double and rounded once equals the float operation's, so results are compared bit for bit.
namespace fp8lab::reference {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;  ///< row-major
  /// The largest number of the type that is cast: a block's float scale has this value if the quotient is above every
  /// float.
  double largest = 0x1.fffffep127;

  double at(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * cols + j)]; }
  Matrix transposed() const;
};

/// A mistake that the reference makes on request, so that a test can show that it would be noticed.
enum class Flaw {
  kNone,
  kDividesByInverse,  ///< x / scale_inv instead of x * scale, which is the rule
  kScaleThroughBf16,  ///< the scale is rounded to BF16
  kSignedAmax,        ///< the largest value instead of the largest magnitude, which is the rule
  kNeighboursBlock,   ///< blocks begin one column late
  kFloorForCeiling,   ///< the other E8M0 rounding
  kTruncates,         ///< quantized data rounded towards zero
};

struct Quantized {
  std::vector<std::uint8_t> data;
  /// The contents of the scale buffer, padding included.
  std::vector<std::uint8_t> scale_bytes;
};

/// The largest magnitude; NaN if any element is NaN, 0 if there are none.
double amax(const Matrix& matrix);

/// The multiplier of a full tensor with this amax.
float tensor_scale(double amax, const QuantFormat& format);

/// Quantizes row-wise. `scale` is for formats with one scale for the full tensor.
Quantized quantize(const Matrix& matrix, const QuantFormat& format, float scale = 0.0f, Flaw flaw = Flaw::kNone);

/// The column-wise orientation: the data of transposed(); under E8M0 scales it is stored transposed back.
Quantized quantize_columnwise(const Matrix& matrix, const QuantFormat& format, float scale = 0.0f);

/// Values of the quantized data times their inverse scales, rounded to float.
Matrix dequantize(const Quantized& quantized, const QuantFormat& format, std::int64_t rows, std::int64_t cols);

/// One tensor under delayed scaling, described as a window of the last amaxes that were not zero.
class DelayedTensor {
 public:
  DelayedTensor(float fp8_max, const DelayedScaling& options) : fp8_max_(fp8_max), options_(options) {}
  float scale() const { return scale_; }
  void update(float last);

 private:
  float fp8_max_;
  DelayedScaling options_;
  float scale_ = 1.0f;
  std::deque<float> window_;  // without the amax that `update` is given
};

}  // namespace fp8lab::reference
