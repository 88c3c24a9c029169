#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab {

/// Bytes of groups of holders, such as {"context of layers[2].attention: k, q, v", 201326592}, largest first.
using HolderBytes = std::vector<std::pair<std::string, std::int64_t>>;

/// Adds up holders whose names differ in indices only, under one name: "gradient of layers[*].fc1.weight".
HolderBytes folded_by_index(const HolderBytes& holders);

}  // namespace fp8lab
