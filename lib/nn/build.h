#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "recipe/recipe.h"

namespace fp8lab {

class RoleScales;

/// What a model consists of, in the order of construction: the lists that optimizers and scale updates walk. Modules
/// own what is listed and are never moved.
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
  DType dtype = DType::kBF16;      ///< of parameters, activations and gradients
  bool eight_bit_weights = false;  ///< weights of products live in the recipe's weight format
  bool fused_quantize =
      true;  ///< norms and activations cast or measure their results as they make them, where that can be
  bool deferred_init = false;  ///< parameters get no storage here: whoever shards them initialises what it keeps
};

/// A parameter, listed in the registry. Unless initialisation is deferred it has its initial values.
std::unique_ptr<Parameter> make_parameter(Build& build, const std::string& name, const Shape& shape, Init init);
/// The weight of a product, held in eight bits where the build says so; `quantizer` says how.
std::unique_ptr<Parameter> make_weight(Build& build, const std::string& name, const Shape& shape,
                                       const Quantizer& quantizer);

/// Gives `parameter` the initial values of rows [first, first + parameter.spec's own rows) of the entire called `name`.
/// Allocates; eight-bit ones are cast from values that live for the call.
void initialize(Runtime& runtime, Parameter& parameter, std::string_view full_name, std::int64_t first_row);

/// The values that `parameter` was initialised with, made again in its nominal type: what its eight bits were cast
/// from. Throws Error once it holds others.
Tensor initial_values(Runtime& runtime, const Parameter& parameter, HolderId holder);

/// Counter stream of a named thing, the same on every rank and device.
std::uint64_t stream_of(std::string_view name);

}  // namespace fp8lab
