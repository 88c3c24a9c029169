#pragma once

#include <cstdint>

namespace fp8lab {

/// Elements of an unsharded parameter, row after row.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

}  // namespace fp8lab
