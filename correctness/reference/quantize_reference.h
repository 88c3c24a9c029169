#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "recipe/recipe.h"

/// Quantization by its definition, one element after the other in double precision. A float's sum, product or quotient
/// computed in double and rounded once more is the same float, so results are compared bit for bit.
namespace fp8lab::reference {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;  ///< row-major
  /// Of the type that is cast: what a block's float scale becomes where the quotient is above every float.
  double largest = 0x1.fffffep127;

  double at(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * cols + j)]; }
  Matrix transposed() const;
};

/// A mistake the reference can be asked to make, so that a test can show it would have noticed.
enum class Flaw {
  kNone,
  kDividesByInverse,  ///< x / scale_inv, where the rule is x * scale
  kScaleThroughBf16,  ///< the scale loses its last bits on the way
  kSignedAmax,        ///< the largest value, where the rule is the largest magnitude
  kNeighboursBlock,   ///< blocks begin one column late
  kFloorForCeiling,   ///< the other E8M0 rounding
  kTruncates,         ///< quantized data rounded towards zero
};

struct Quantized {
  std::vector<std::uint8_t> data;
  /// What the scale buffer holds, padding included.
  std::vector<std::uint8_t> scale_bytes;
};

/// Largest magnitude; NaN if there is one among the elements, 0 if there are none.
double amax(const Matrix& matrix);

/// The multiplier of a full tensor with this amax.
float tensor_scale(double amax, const QuantFormat& format);

/// Row-wise. `scale` is for full tensors.
Quantized quantize(const Matrix& matrix, const QuantFormat& format, float scale = 0.0f, Flaw flaw = Flaw::kNone);

/// The column-wise orientation: that of transposed(), turned back in memory under E8M0 scales.
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
  std::deque<float> window_;  // without the one that `update` provides
};

}  // namespace fp8lab::reference
