#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

/// Derivatives of double-precision functions by central differences of fourth order: with a step of 1e-3 the
/// truncation is about 1e-13 of the fifth derivative, the rounding about 1e-12 of the function's value.
namespace fp8lab::reference {

inline constexpr double kDifferenceStep = 1e-3;

/// df/dt at t = 0 of a function of one variable.
template <class Function>
double derivative(const Function& f) {
  const double h = kDifferenceStep;
  return (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h);
}

/// Every partial derivative at x.
template <class Function>
std::vector<double> gradient(const Function& f, std::vector<double> x) {
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    result[i] = derivative([&](double t) {
      x[i] = at + t;
      return f(x);
    });
    x[i] = at;
  }
  return result;
}

/// A bound of the error of these differences, for a function whose terms sum to `magnitude` in absolute value.
inline double difference_error(double magnitude) { return 1e-11 * (1.0 + magnitude); }

}  // namespace fp8lab::reference
