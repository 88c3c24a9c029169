#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fp8lab {

/// The median of at least one value, none of them NaN; of an even number of values the mean of the middle two.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : 0.5 * (*std::max_element(values.begin(), middle) + *middle);
}

}  // namespace fp8lab
