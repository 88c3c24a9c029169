#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/runtime.h"
#include "recipe/recipe.h"

namespace fp8lab {

class RoleScales;
class RouterBiases;

/// The parts of a model in the order of construction: the lists that optimizers and updates between steps use. Modules
/// own the listed objects, which are never moved.
struct Registry {
  std::vector<Parameter*> parameters;
  std::vector<RoleScales*> forward_scales;
  std::vector<RoleScales*> backward_scales;
  std::vector<RouterBiases*> router_biases;
};

/// The arguments that every module needs to be built.
struct Build {
  Runtime& runtime;
  const Recipe& recipe;
  Registry& registry;
  DType dtype = DType::kBF16;      ///< type of parameters, activations and gradients
  bool eight_bit_weights = false;  ///< weights of matrix products are stored in the recipe's weight format
  /// Norms and activations cast or measure their results in the same kernel, if possible.
  bool fused_quantize = true;
  bool deferred_init = false;  ///< parameters get no storage here: the sharding initialises each rank's shard
  bool cache_weights = false;  ///< modules keep the copies that they quantize of weights
  /// Rows of amax histories until the first forward; 0: the recipe's number.
  std::int64_t initial_history_length = 0;
  InitialValuesIn initial_in = InitialValuesIn::kSeed;
  float init_deviation = 0.02f;      ///< standard deviation of matrices' initial values
  float residual_deviation = 0.02f;  ///< the same for matrices whose product is added to the residual stream
};

/// Makes a parameter and lists it in the registry. It has its initial values unless initialisation is deferred. `part`:
/// the part of the parameter of all ranks that `shape` is.
std::unique_ptr<Parameter> make_parameter(Build& build, const std::string& name, const Shape& shape, Init init,
                                          RowPart part = {});
/// Makes the weight of a matrix product, quantized by `quantizer` if the build has eight-bit weights. `deviation` is
/// the standard deviation of its initial values. `part` is as in make_parameter().
std::unique_ptr<Parameter> make_weight(Build& build, const std::string& name, const Shape& shape,
                                       const Quantizer& quantizer, float deviation, RowPart part = {});

/// Gives `parameter` the initial values of rows [first_row, first_row + rows of parameter.spec) of the unsharded
/// parameter called `full_name`. Allocates. Eight-bit parameters are cast from values that live for the call.
void initialize(Runtime& runtime, Parameter& parameter, std::string_view full_name, std::int64_t first_row);

/// The values that `parameter` was initialised with, in its nominal type: the values from which its eight bits were
/// cast. Copied from where they are kept, or else computed again. Throws Error if `parameter.initial` is absent.
Tensor initial_values(Runtime& runtime, const Parameter& parameter, HolderId holder);

/// Random stream of a name, the same on every rank and device.
std::uint64_t stream_of(std::string_view name);

}  // namespace fp8lab
