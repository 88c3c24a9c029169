#pragma once

#include <span>
#include <string>

#include "autograd/runtime.h"
#include "nn/build.h"
#include "ops/experts/routing.h"

namespace fp8lab {

/// The biases by which a router's choice of experts is balanced without a loss of its own (DeepSeek-V3), and the
/// numbers of tokens that chose each expert in the step so far. Every rank has all of them; no optimizer changes them.
/// Biases are held as parameters, counts as recipe state.
class RouterBiases {
 public:
  /// Biases start at 0. Listed in the registry. `router`: the name of the router.
  RouterBiases(Build& build, const std::string& router, std::int64_t experts, float rate);

  /// What a forward reads and counts. A choice that is recomputed has been counted already, and validation is not
  /// counted.
  RouterBalance balance(const Runtime& runtime) const;
  const std::string& name() const { return name_; }
  const Tensor& values() const { return biases_; }

 private:
  friend void update_biases(Runtime&, std::span<RouterBiases* const>, ProcessGroup*);

  std::string name_;
  float rate_;
  Tensor biases_;
  Tensor counts_;
};

/// Once per step, after the optimizer: moves all biases by the counts of the step, and starts to count again. With a
/// group this is a collective, and the counts are the sums over its ranks.
void update_biases(Runtime& runtime, std::span<RouterBiases* const> biases, ProcessGroup* ranks);

}  // namespace fp8lab
