#include "core/shape.h"

#include "core/check.h"

namespace fp8lab {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  check(dims.size() <= static_cast<std::size_t>(kMaxRank), "Shape: at most 5 dimensions");
  for (std::int64_t dim : dims) {
    check(dim >= 0, "Shape: a dimension is negative");
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
}

std::int64_t Shape::numel() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

std::int64_t Shape::rows() const {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= (*this)[i];
  return n;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace fp8lab
