#include "core/holder_bytes.h"

#include <algorithm>
#include <unordered_map>

namespace fp8lab {
namespace {

/// "layers[12].fc1" -> "layers[*].fc1"
std::string without_indices(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    out += name[i];
    if (name[i] != '[') continue;
    const std::size_t end = name.find_first_not_of("0123456789", i + 1);
    if (end == std::string::npos || end == i + 1 || name[end] != ']') continue;
    out += '*';
    i = end - 1;
  }
  return out;
}

}  // namespace

HolderBytes folded_by_index(const HolderBytes& holders) {
  HolderBytes out;
  std::unordered_map<std::string, std::size_t> positions;
  for (const auto& [name, bytes] : holders) {
    const auto [it, is_new] = positions.emplace(without_indices(name), out.size());
    if (is_new) out.emplace_back(it->first, 0);
    out[it->second].second += bytes;
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

}  // namespace fp8lab
