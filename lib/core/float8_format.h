#pragma once

#include <string>

#include "core/check.h"
#include "core/dtype.h"
#include "core/float8.h"

namespace fp8lab {

/// Properties of an FP8 dtype, for code that gets the format at run time.
struct Float8Format {
  float max;
  int emax;
  float min_normal;
  float min_subnormal;
};

constexpr bool is_float8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

/// Calls `f(E4M3{})` or `f(E5M2{})` and returns its result. Throws Error for any other dtype.
template <class F>
constexpr auto visit_float8(DType dtype, F&& f) {
  if (dtype == DType::kE4M3) return f(E4M3{});
  if (dtype == DType::kE5M2) return f(E5M2{});
  fail("visit_float8: " + std::string(name(dtype)) + " is not an FP8 dtype (e4m3, e5m2)");
}

constexpr Float8Format float8_format(DType dtype) {
  return visit_float8(dtype, [](auto format) {
    using Format = decltype(format);
    return Float8Format{Format::kMax, Format::kEmax, Format::kMinNormal, Format::kMinSubnormal};
  });
}

}  // namespace fp8lab
