#include "harness/reference/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace fp8lab::reference_step {
namespace {

/// Sums over a part of a tensor.
struct Part {
  double expected = 0.0;   ///< N
  double distance = 0.0;   ///< D
  double magnitude = 0.0;  ///< |rounded|^2
  double quartic = 0.0;    ///< sum of rounded^4

  /// The largest D.
  double bound(const Bounds& bounds) const {
    // magnitude^2 / quartic: how many elements of equal magnitude would vary as much
    const double few = magnitude > 0.0 ? bounds.step * bounds.step * quartic / magnitude : 0.0;
    const double relative = bounds.sums * bounds.sums + bounds.additions * bounds.additions;
    return bounds.share * expected + few + relative * magnitude + bounds.rounding * bounds.rounding;
  }
  double quotient(const Bounds& bounds) const { return distance == 0.0 ? 0.0 : distance / bound(bounds); }
};

double mean_quotient(const std::vector<Part>& parts, const Bounds& bounds) {
  double total = 0.0;
  for (const Part& part : parts) total += std::min(part.quotient(bounds), kMostOfOne);
  return parts.empty() ? 0.0 : total / static_cast<double>(parts.size());
}

/// How many parts of equal magnitude would vary as much as these: n for n equal parts, 1 if one outweighs the
/// others.
double independent_parts(const std::vector<Part>& parts) {
  double sum = 0.0, squares = 0.0;
  for (const Part& part : parts) sum += part.magnitude, squares += part.magnitude * part.magnitude;
  return squares > 0.0 ? sum * sum / squares : 1.0;
}

double decibels(double signal, double noise) { return 10.0 * std::log10(signal / noise); }

}  // namespace

Distance compare(const Matrix& exact, const Matrix& rounded, const Matrix& seen, const Bounds& bounds) {
  std::vector<Part> rows(static_cast<std::size_t>(exact.rows)), columns(static_cast<std::size_t>(exact.cols));
  Part all;
  double signal = 0.0, noise = 0.0, along = 0.0;
  for (std::int64_t i = 0; i < exact.rows; ++i)
    for (std::int64_t j = 0; j < exact.cols; ++j) {
      const double e = exact.row(i)[j], r = rounded.row(i)[j], s = seen.row(i)[j];
      const double of_parts = bounds.parts != nullptr ? bounds.parts->row(i)[j] : 0.0;
      const double expected = (r - e) * (r - e) + of_parts, distance = (s - r) * (s - r);
      signal += e * e;
      noise += (s - e) * (s - e);
      along += (s - r) * r;
      for (Part* part : {&all, &rows[static_cast<std::size_t>(i)], &columns[static_cast<std::size_t>(j)]}) {
        part->expected += expected;
        part->distance += distance;
        part->magnitude += r * r;
        part->quartic += r * r * r * r;
      }
    }
  Distance out;
  out.sqnr_db = decibels(signal, noise);
  out.expected_sqnr_db = decibels(signal, all.expected);
  out.noise = all.quotient(bounds);
  // A vector is one row and has a value in each column: neither has a mean of its own.
  if (exact.rows > 1 && exact.cols > 1 && !bounds.together)
    out.noise = std::max({out.noise, mean_quotient(rows, bounds), mean_quotient(columns, bounds)});
  out.noise = std::sqrt(out.noise);
  const double independent = std::max(independent_parts(rows), independent_parts(columns));
  const double deviation = std::sqrt(all.bound(bounds) / independent);
  const double slope = all.magnitude > 0.0 ? along / all.magnitude : 0.0;
  if (all.magnitude > 0.0) out.scale = std::abs(slope) * std::sqrt(all.magnitude) / (kDeviations * deviation);

  if (!std::isfinite(noise) || std::isnan(out.noise))
    out.fault = "a value is not finite";
  else if (slope < -1.0 && out.scale > 1.0)
    out.fault = fmt::format("sign: its slope on the reference is {:.4g}", 1.0 + slope);
  else if (out.scale > 1.0)
    out.fault = fmt::format("scale: its slope on the reference is {:.6g}, at most {:.2g} from 1 expected", 1.0 + slope,
                            kDeviations * deviation / std::sqrt(all.magnitude));
  else if (out.noise > 1.0)
    out.fault = fmt::format("noise: {:.2f} times its bound; SQNR {:.2f} dB, {:.2f} dB expected", out.noise, out.sqnr_db,
                            out.expected_sqnr_db);
  if (!std::isfinite(out.noise)) out.noise = std::numeric_limits<double>::quiet_NaN();
  return out;
}

}  // namespace fp8lab::reference_step
