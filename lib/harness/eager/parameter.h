#pragma once

#include "harness/eager/numbers.h"

namespace fp8lab::eager {

struct Parameter {
  Bytes rows = 0, columns = 0;
  Block value = 0;     ///< what layers compute with; without FSDP2 the parameter itself
  Block gradient = 0;  ///< all rows, from its product until it is reduced, or until the step ends

  Block added = 0;                ///< what an operation adds to a gradient that is there, until the operation ends
  bool is_float8 = false;         ///< FSDP2 gathers it in eight bits
  bool is_of_experts = false;     ///< the matrices of this rank's experts
  bool divides_experts = false;   ///< FSDP2 divides its second dimension: each shard has a part of every expert
  bool is_frozen = false;         ///< it takes no gradient
  bool is_gradient_wide = false;  ///< its gradient has the type of the reduction already

  Bytes elements() const { return rows * columns; }
};

/// Makes the gradient, or `added`, which whoever calls frees when the operation has ended. A frozen parameter has none.
void make_gradient(const Numbers& numbers, Heap& heap, Parameter& parameter);

}  // namespace fp8lab::eager
