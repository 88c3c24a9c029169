#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

/// Sums of products of eight-bit data as Hopper's matrix units compute them, and bounds of their errors.
///
/// One instruction adds `step` products to an accumulator: all are truncated to multiples of 2^(e - fraction_bits),
/// with e the exponent of the largest magnitude among them, and then added exactly. Measured on an H200: 13 fraction
/// bits. After `promoted_every` products the accumulator is added to an FP32 sum and starts again from zero; with fast
/// accumulation it never is.
namespace fp8lab::reference {

struct MatrixUnit {
  int fraction_bits = 13;
  std::size_t step = 32;
  std::size_t promoted_every = 128;
};

inline constexpr std::size_t kNeverPromoted = static_cast<std::size_t>(-1);

/// Calls `each` with the groups of `products` that share an accumulator.
template <class Each>
void for_each_accumulator(std::span<const double> products, const MatrixUnit& unit, const Each& each) {
  for (std::size_t begin = 0; begin < products.size();) {
    const std::size_t count = std::min(unit.promoted_every, products.size() - begin);
    each(products.subspan(begin, count));
    begin += count;
  }
}

/// One such sum, of products in the given order.
inline double sum_on(const MatrixUnit& unit, std::span<const double> products) {
  double sum = 0.0;
  for_each_accumulator(products, unit, [&](std::span<const double> part) {
    double held = 0.0;
    for (std::size_t begin = 0; begin < part.size(); begin += unit.step) {
      const std::span<const double> step = part.subspan(begin, std::min(unit.step, part.size() - begin));
      double largest = std::fabs(held);
      for (const double product : step) largest = std::max(largest, std::fabs(product));
      if (largest == 0.0) continue;
      const double quantum = std::ldexp(1.0, std::ilogb(largest) - unit.fraction_bits);
      held = std::trunc(held / quantum) * quantum;
      for (const double product : step) held += std::trunc(product / quantum) * quantum;
    }
    sum = static_cast<double>(static_cast<float>(sum + held));
  });
  return sum;
}

/// A bound of |computed - exact| beyond FP32's own roundings, for any order of the products in an accumulator. No
/// term of an instruction exceeds the largest partial sum of any order, which is the sum of all positive or of all
/// negative products; each of its `step` products and the accumulator loses less than 2^-fraction_bits of that sum.
inline double error_on(const MatrixUnit& unit, std::span<const double> products) {
  double error = 0.0;
  for_each_accumulator(products, unit, [&](std::span<const double> part) {
    double positive = 0.0, negative = 0.0;
    for (const double product : part) (product > 0.0 ? positive : negative) += std::fabs(product);
    const double steps = std::ceil(static_cast<double>(part.size()) / static_cast<double>(unit.step));
    error += steps * static_cast<double>(unit.step + 1) * std::ldexp(std::max(positive, negative), -unit.fraction_bits);
  });
  return error;
}

/// A value below which |computed - exact| almost certainly stays if products come in this order and have random signs.
/// Before each step an accumulator holds the products since its start, which may be any earlier step. It is truncated
/// towards zero there by up to the largest possible loss. The losses of the step's products have the products' signs,
/// so they add up as a random walk of steps uniform between 0 and the largest loss, of which six standard deviations
/// are taken.
inline double likely_error_on(const MatrixUnit& unit, std::span<const double> products) {
  double steady = 0.0, variance = 0.0;
  for_each_accumulator(products, unit, [&](std::span<const double> part) {
    double sum = 0.0, lowest = 0.0, highest = 0.0;
    for (std::size_t begin = 0; begin < part.size(); begin += unit.step) {
      const std::span<const double> step = part.subspan(begin, std::min(unit.step, part.size() - begin));
      double largest = std::max(sum - lowest, highest - sum);
      for (const double product : step) {
        largest = std::max(largest, std::fabs(product));
        sum += product;
      }
      lowest = std::min(lowest, sum);
      highest = std::max(highest, sum);
      if (largest == 0.0) continue;
      const double cut = std::ldexp(1.0, std::ilogb(largest) - unit.fraction_bits);
      steady += cut;
      variance += static_cast<double>(step.size()) * cut * cut / 3.0;
    }
  });
  return steady + 6.0 * std::sqrt(variance);
}

}  // namespace fp8lab::reference
