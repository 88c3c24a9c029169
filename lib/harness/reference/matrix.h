#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fp8lab::reference_step {

/// Row-major [rows, cols] in double.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(std::int64_t of_rows, std::int64_t of_cols)
      : rows(of_rows), cols(of_cols), values(static_cast<std::size_t>(of_rows * of_cols)) {}
  Matrix(std::int64_t of_rows, std::int64_t of_cols, const std::vector<float>& from)
      : rows(of_rows), cols(of_cols), values(from.begin(), from.end()) {}

  double* row(std::int64_t i) { return values.data() + i * cols; }
  const double* row(std::int64_t i) const { return values.data() + i * cols; }
};

/// By the name of a parameter, "layers[0].qkv.weight"; weights are [out, in], vectors [1, columns].
using NamedMatrices = std::map<std::string, Matrix>;

Matrix transposed(const Matrix& x);
/// a [m, k] times b [k, n].
Matrix product(const Matrix& a, const Matrix& b);
/// a [m, k] times the transpose of b [n, k] as a Hopper tensor core sums it. One instruction adds 32 products to an
/// accumulator: all of them, and what the accumulator holds, are truncated to multiples of 2^(e - 13), and added
/// exactly; e is the exponent of the largest magnitude among them. After 128 products the accumulator is added to a
/// sum in FP32 and starts again from zero; never if `fast`.
Matrix tensor_core_product(const Matrix& a, const Matrix& b, bool fast);
/// a + b, element by element.
Matrix sum(const Matrix& a, const Matrix& b);
/// Rows [begin, begin + count).
Matrix rows_of(const Matrix& x, std::int64_t begin, std::int64_t count);

}  // namespace fp8lab::reference_step
