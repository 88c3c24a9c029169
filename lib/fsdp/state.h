#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Settings of one wrapped module. The entire model is the root, with path "".
struct ShardingState {
  std::string path;  ///< "layers[2]"
  bool reshard_after_forward = true;
};

/// The state of the innermost wrapped module that contains the module or parameter `name`. A gather hook has only its
/// parameter, so it must search; parameter groups store the result.
const ShardingState& state_of(const std::vector<ShardingState>& states, std::string_view name);

}  // namespace fp8lab
