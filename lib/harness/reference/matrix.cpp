#include "harness/reference/matrix.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fp8lab::reference_step {
namespace {

constexpr std::int64_t kInstruction = 32, kPromoted = 128;
constexpr int kFractionBits = 13;

/// What the accumulator holds after one instruction on `count` pairs.
double accumulated(double held, const double* a, const double* b, std::int64_t count) {
  std::array<double, kInstruction> products;
  double largest = std::abs(held);
  for (std::int64_t i = 0; i < count; ++i) {
    products[static_cast<std::size_t>(i)] = a[i] * b[i];
    largest = std::max(largest, std::abs(products[static_cast<std::size_t>(i)]));
  }
  if (largest == 0.0 || !std::isfinite(largest)) return held + largest;
  const double unit = std::ldexp(1.0, std::ilogb(largest) - kFractionBits), units = 1.0 / unit;
  double sum = std::trunc(held * units);
  for (std::int64_t i = 0; i < count; ++i) sum += std::trunc(products[static_cast<std::size_t>(i)] * units);
  return sum * unit;
}

}  // namespace

Matrix tensor_core_product(const Matrix& a, const Matrix& b, bool fast) {
  Matrix out(a.rows, b.rows);
  const std::int64_t promoted = fast ? std::max<std::int64_t>(a.cols, 1) : kPromoted;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.rows; ++j)
      for (std::int64_t begin = 0; begin < a.cols; begin += promoted) {
        const std::int64_t end = std::min(begin + promoted, a.cols);
        double held = 0.0;
        for (std::int64_t k = begin; k < end; k += kInstruction)
          held = accumulated(held, a.row(i) + k, b.row(j) + k, std::min(kInstruction, end - k));
        out.row(i)[j] = static_cast<double>(static_cast<float>(out.row(i)[j] + held));
      }
  return out;
}

Matrix transposed(const Matrix& x) {
  Matrix out(x.cols, x.rows);
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = 0; j < x.cols; ++j) out.row(j)[i] = x.row(i)[j];
  return out;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    double* const to = out.row(i);
    const double* const factors = a.row(i);
    std::int64_t k = 0;
    for (; k + 4 <= a.cols; k += 4) {  // four rows of b at a time, so that `to` is read and written less often
      const double *b0 = b.row(k), *b1 = b.row(k + 1), *b2 = b.row(k + 2), *b3 = b.row(k + 3);
      const double f0 = factors[k], f1 = factors[k + 1], f2 = factors[k + 2], f3 = factors[k + 3];
      for (std::int64_t j = 0; j < b.cols; ++j) to[j] += f0 * b0[j] + f1 * b1[j] + f2 * b2[j] + f3 * b3[j];
    }
    for (; k < a.cols; ++k)
      for (std::int64_t j = 0; j < b.cols; ++j) to[j] += factors[k] * b.row(k)[j];
  }
  return out;
}

Matrix sum(const Matrix& a, const Matrix& b) {
  Matrix out = a;
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] += b.values[i];
  return out;
}

Matrix rows_of(const Matrix& x, std::int64_t begin, std::int64_t count) {
  Matrix out(count, x.cols);
  std::copy_n(x.row(begin), count * x.cols, out.values.begin());
  return out;
}

}  // namespace fp8lab::reference_step
