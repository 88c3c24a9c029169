#include "harness/values/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace fp8lab {
namespace {

using Places = std::vector<std::size_t>;

/// A table of more entries is not made: nothing is paired then.
constexpr std::size_t kMostEntries = std::size_t{1} << 24;

std::unordered_map<std::string, Places> by_name(const std::vector<RecordedTensor>& tensors) {
  std::unordered_map<std::string, Places> out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const RecordedTensor& one = tensors[i];
    out[fmt::format("{}\t{}\t{}\t{}", one.step, one.phase, one.module, one.name)].push_back(i);
  }
  return out;
}

/// Pairs the longest common subsequence of two lists of tensors with equal shapes and bits.
void align(const std::vector<RecordedTensor>& a, const Places& in_a, const std::vector<RecordedTensor>& b,
           const Places& in_b, Pairs& out) {
  const std::size_t rows = in_a.size(), columns = in_b.size();
  if ((rows + 1) * (columns + 1) > kMostEntries) return;
  const auto equal = [&](std::size_t i, std::size_t j) {
    const RecordedTensor &one = a[in_a[i]], &other = b[in_b[j]];
    return one.sketch.bits == other.sketch.bits && one.shape == other.shape;
  };
  std::vector<std::uint32_t> table((rows + 1) * (columns + 1), 0);  // lengths of what is common from (i, j) on
  const auto length = [&](std::size_t i, std::size_t j) -> std::uint32_t& { return table[i * (columns + 1) + j]; };
  for (std::size_t i = rows; i-- > 0;)
    for (std::size_t j = columns; j-- > 0;)
      length(i, j) = equal(i, j) ? length(i + 1, j + 1) + 1 : std::max(length(i + 1, j), length(i, j + 1));
  for (std::size_t i = 0, j = 0; i < rows && j < columns;) {
    if (equal(i, j)) {
      out.of_a[in_a[i]] = in_b[j];
      out.of_b[in_b[j]] = in_a[i];
      ++i, ++j;
    } else if (length(i + 1, j) >= length(i, j + 1)) {
      ++i;
    } else {
      ++j;
    }
  }
}

}  // namespace

Pairs pairs_of(const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b) {
  Pairs out{.of_a = Places(a.size(), Pairs::kNone), .of_b = Places(b.size(), Pairs::kNone)};
  const std::unordered_map<std::string, Places> others = by_name(b);
  for (const auto& [name, in_a] : by_name(a)) {
    const auto found = others.find(name);
    if (found == others.end()) continue;
    const Places& in_b = found->second;
    if (in_a.size() != in_b.size()) {
      align(a, in_a, b, in_b, out);
      continue;
    }
    for (std::size_t i = 0; i < in_a.size(); ++i) {
      out.of_a[in_a[i]] = in_b[i];
      out.of_b[in_b[i]] = in_a[i];
    }
  }
  return out;
}

}  // namespace fp8lab
