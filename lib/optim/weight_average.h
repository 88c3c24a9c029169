#pragma once

#include <vector>

#include "autograd/runtime.h"
#include "optim/list_ops.h"

namespace fp8lab {

/// An exponential moving average of parameters, kept in their own formats: average += (1 - decay) (parameter -
/// average), by one list operation. The first update copies. Averages of parameters in eight bits start as zeros of the
/// same format and are cast again by every update, so changes below half a unit of 3 mantissa bits are lost. Other
/// averages are f32. If a parameter is sharded, its shard is averaged. Shards measured together are cast together.
class WeightAverage {
 public:
  /// Throws Error unless 0 <= decay < 1.
  WeightAverage(Runtime& runtime, std::vector<Parameter*> parameters, double decay);

  void update(Runtime& runtime);

  /// Indices count `parameters`.
  const QuantizedTensor& quantized(std::size_t i) const { return averages_[i].quantized; }
  const Tensor& value(std::size_t i) const { return averages_[i].value; }

 private:
  struct Average {
    Tensor value;
    QuantizedTensor quantized;
    Quantizer quantizer;  ///< the parameter's, without its amax: averages are not recorded in its history
  };

  std::vector<Parameter*> parameters_;
  std::vector<Average> averages_;
  double decay_;
  bool empty_ = true;
};

}  // namespace fp8lab
