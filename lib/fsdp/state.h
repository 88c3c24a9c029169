#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "behavior/behaviors.h"

namespace fp8lab {

/// What one wrapped module asks for. The model as a full is the root, of path "".
struct ShardingState {
  std::string path;  ///< "layers[2]"
  bool reshard_after_forward = true;
};

/// The state that holds for the parameter called `name`: that of the nearest module around it that is wrapped. A gather
/// hook knows its parameter alone, so it has to look; groups keep what they found.
const ShardingState& state_of(const Behaviors& behaviors, const std::vector<ShardingState>& states,
                              std::string_view name);

}  // namespace fp8lab
