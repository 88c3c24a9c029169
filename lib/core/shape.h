#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace fp8lab {

/// Dimensions of a tensor, outermost first. Holds no heap memory; any dimension may be 0.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  constexpr Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);

  int rank() const { return rank_; }
  /// Negative `i` counts from the innermost dimension.
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? rank_ + i : i)]; }
  void set(int i, std::int64_t dim) { dims_[static_cast<std::size_t>(i < 0 ? rank_ + i : i)] = dim; }

  std::int64_t numel() const;
  /// Product of all but the innermost dimension: the rows of the matrix that a GEMM or a norm sees.
  std::int64_t rows() const;
  /// The innermost dimension (1 for rank 0).
  std::int64_t cols() const { return rank_ == 0 ? 1 : dims_[static_cast<std::size_t>(rank_ - 1)]; }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// "[2, 3, 4]"
std::string to_string(const Shape& shape);

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace fp8lab
