#include "fsdp/state.h"

#include "core/check.h"

namespace fp8lab {
namespace {

bool encloses(std::string_view path, std::string_view name) {
  return path.empty() || (name.starts_with(path) && (name.size() == path.size() || name[path.size()] == '.'));
}

}  // namespace

const ShardingState& state_of(const std::vector<ShardingState>& states, std::string_view name) {
  const ShardingState* found = nullptr;
  for (const ShardingState& state : states)
    if (encloses(state.path, name) && (found == nullptr || state.path.size() > found->path.size())) found = &state;
  check(found != nullptr, "sharding: a parameter lies in no wrapped module");
  return *found;
}

}  // namespace fp8lab
