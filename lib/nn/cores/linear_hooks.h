#pragma once

#include <memory>
#include <string>

#include "autograd/node.h"

namespace fp8lab {

/// Points at which a reverted fix acts on the weight of a linear product; the defaults are the fixed behaviour.
class LinearHooks {
 public:
  virtual ~LinearHooks() = default;

  /// True if forward saves its copy of a sharded 16-bit weight; otherwise backward quantizes the weight again.
  virtual bool saves_sharded_copy() const { return false; }
  /// True if a cached copy in `format` that lacks an orientation is dropped, and both orientations are cast. Square
  /// blocks keep their copy, which its transpose completes.
  virtual bool drops_incomplete_copy(const QuantFormat& format) const {
    return format.per_tensor() || !format.columnwise_is_transpose();
  }
  /// True if a cached copy in `format` is left as it is once a step has cast it; otherwise every micro-batch casts it.
  /// `grouped`: the copy belongs to an expert of a GroupedLinear.
  virtual bool skips_cast(const ArchProfile& /*arch*/, const QuantFormat& /*format*/, bool /*grouped*/) const {
    return true;
  }
  /// Before backward returns the gradient of an input that came in eight bits. `dtype` is its type in high precision.
  virtual void before_return(Runtime& /*runtime*/, Gradient& /*of_input*/, DType /*dtype*/) const {}
  /// Before forward of the core `reader` reads an eight-bit weight.
  virtual void before_forward_reads(Runtime& /*runtime*/, Parameter& /*weight*/, const std::string& /*reader*/) {}
  /// Once backward has read the weight: frees the transpose that a gather or a pass made of its rows.
  virtual void after_backward_reads(Parameter& weight) {
    if (weight.made_columnwise) weight.drop_columnwise();
  }
  /// Once a history was resized; `live` is the row of an eight-bit weight's amaxes in the new one.
  virtual void after_history_resize(Quantizer& quantizer, const Tensor& live) { quantizer.amax = live; }
};

std::unique_ptr<LinearHooks> make_linear_hooks(const Behaviors& behaviors);

}  // namespace fp8lab
