#pragma once

#include <string>

#include "harness/reference/matrix.h"

namespace fp8lab::reference_step {

/// FP32 sums of a few hundred terms, if the rounded step rounds to FP32 only and has next to no noise.
inline constexpr double kFloor = 0x1p-19;

/// What compare() allows; see there.
struct Bounds {
  double share;
  double step;
  double rounding = 0.0;
  double sums = kFloor;    ///< roundings of FP32 sums, relative to the tensor
  double additions = 0.0;  ///< roundings when parts of the tensor are added up, relative to it
  /// The square of each element's noise in the sum of parts, in addition to N. Null: N is all.
  const Matrix* parts = nullptr;
  /// Rows, or columns, have one noise in common, as when the gradient of every output is 1: no means over them.
  bool together = false;
};

/// How far a tensor is from the reference step's, in units of its bounds.
struct Distance {
  double noise = 0.0;
  double scale = 0.0;
  double sqnr_db = 0.0;           ///< SQNR of the tensor against the exact step
  double expected_sqnr_db = 0.0;  ///< SQNR of the rounded step against the exact one
  std::string fault;              ///< what is wrong with it, in words; empty within the bounds
};

/// Judges the tensor `seen` of the runtime by the same tensor of the exact step and of the rounded one.
///
/// The exact step has no noise. The rounded step has the noise that the recipe's definition implies for these very
/// values: N = |rounded - exact|^2. A runtime that rounds at the same places differs from the rounded step in the order
/// of FP32 additions only. These move a value across a rounding tie of BF16 in about one of 10^4 cases, and such a
/// value across one of eight bits in about one of 16; products and attention then spread the difference over a token's
/// row. So D = |seen - rounded|^2 stays well below N, whereas
///   - a runtime that skips quantization is at the exact step: D = N;
///   - a runtime that rounds at other places (another scale, mode, format or operand) has noise that is independent of
///     the rounded step's: D = N + its own noise, 2 N or more.
/// The bound is D <= share N + (step |rounded|)^2 / n + (sums |rounded|)^2 + rounding^2. By the triangle inequality
/// it holds the tensor's own noise |seen - exact| between sqrt(N) (1 - sqrt(share)) and sqrt(N) (1 + sqrt(share)): it
/// is two-sided.
///
/// Without eight bits the same differences reach every value of a row within a few products, since a step of BF16 in
/// one of hundreds of terms already moves a sum by a tenth of its own step. Noise is then independent after all, D = 2
/// N, and the share is kIndependentShare. What is rounded once, as an updated weight is, keeps kNoiseShare. In a
/// language model the same difference is at every position of a token, so that fewer are independent: kRepeatedShare.
///
/// The second term is for tensors of which few elements matter (n of equal magnitude would vary as these do), such as
/// the gradient of a norm's weights when one channel is huge: N is then one rounding or two, which can be exact by
/// chance, and D a step of the stored type.
///
/// The last term is for a vector, of which few elements decide, that is the difference or the sum of larger numbers: an
/// update of weights, or a sum over tokens that cancel. These are rounded to steps of their own size, `rounding` at
/// most, and one may fall to the other side.
///
/// In FP32 the roundings of Q and K move a logit of attention by two steps of the magnitudes that it adds up, and so
/// its exponential, relative to it.
///
/// A gradient over several ranks or micro-batches is added up in the stored type. Each addition rounds by at most half
/// a step of the sum so far; n independent ones by sqrt(n) of these: `additions`, relative to |rounded|.
///
/// D and N are compared three times: over the tensor, and as the mean over its rows and over its columns of the
/// quotient, which is at most kMostOfOne for each. The means see a defect of small channels that a large one hides. The
/// limit keeps rows whose values by chance need no rounding from deciding without the others, and one token through the
/// rows that it dominates, as it does in the gradient of a weight whose magnitudes vary over many binades. The limit is
/// the quotient of a row whose quantization is skipped, D = N, at kNoiseShare.
///
/// The slope of `seen` on `rounded` is 1 except for differences that happen to point along `rounded`: if independent,
/// of deviation sqrt(D / n) / |rounded| for n elements. A differing value spreads over a row, so n counts
/// rows or columns, whichever are more, by their weight: (sum of squares)^2 / sum of (squares of a row)^2. The slope
/// may be off by kDeviations of these. The noise bound lets pass what the slope does not: a gradient of 1.01 times its
/// value is noise of 40 dB, below the noise of any eight bits.
Distance compare(const Matrix& exact, const Matrix& rounded, const Matrix& seen, const Bounds& bounds);

inline constexpr double kNoiseShare = 0.25;
inline constexpr double kRepeatedShare = 0.5;
inline constexpr double kIndependentShare = 3.0;
/// Two steps of the type that tensors are stored in, relative to a number of it.
inline constexpr double kBF16Steps = 0x1p-6;
inline constexpr double kF32Steps = 0x1p-22;
inline constexpr double kMostOfOne = 1.0 / kNoiseShare;
inline constexpr double kDeviations = 5.0;

}  // namespace fp8lab::reference_step
