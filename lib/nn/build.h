#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "recipe/recipe.h"

namespace fp8lab {

class RoleScales;

/// What a model consists of, in the order of construction: the lists that optimizers and scale updates walk. Modules own what
/// is listed and are never moved.
struct Registry {
  std::vector<Parameter*> parameters;
  std::vector<RoleScales*> forward_scales;
  std::vector<RoleScales*> backward_scales;
};

/// What every module needs to be built.
struct Build {
  Runtime& runtime;
  const Recipe& recipe;
  Registry& registry;
  DType dtype = DType::kBF16;  ///< of parameters, activations and gradients
};

enum class Init {
  kNormal,  ///< mean 0, standard deviation 0.02, from (seed, parameter name, global index)
  kZeros,
  kOnes,
};

/// A parameter with its initial values, listed in the registry.
std::unique_ptr<Parameter> make_parameter(Build& build, const std::string& name, const Shape& shape, Init init);

/// Counter stream of a named thing, the same on every rank and device.
std::uint64_t stream_of(std::string_view name);

}  // namespace fp8lab
