#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Bytes or elements as coefficients of terms: {"tokens*hidden": 2, "bytes": 512}. A term is "bytes", a product of
/// sizes, or "sums(N)", the scratch of PyTorch's sum over tokens of N columns.
using Terms = std::map<std::string, double>;

/// The sizes of a model, of which terms are products: hidden, heads, head_dim, kv (the width of keys), qkv (of queries,
/// keys and values), ffn, seq, and tokens of a micro-batch.
class Sizes {
 public:
  explicit Sizes(const ModelConfig& model);

  /// The value of a term; nothing for a text that is no term.
  std::optional<double> of(std::string_view term) const;
  /// Throws std::bad_optional_access for a text that is no term; profiles are checked when they are read.
  double of(const Terms& terms) const;

 private:
  double scratch_of_sum(std::int64_t columns) const;

  std::map<std::string, std::int64_t, std::less<>> sizes_;
};

}  // namespace fp8lab
