#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "harness/eager/parameter.h"

// What a program trains one after the other between its embedding, or its input, and its loss.
namespace fp8lab::eager {

class TrainedLayer {
 public:
  virtual ~TrainedLayer() = default;

  /// Tensors that are no parameters, as the model is built.
  virtual void make_buffers() {}
  /// Forward from the residual stream `input`, which the layer owns afterwards unless `keeps_input`. Returns its
  /// output.
  virtual Block forward(Block input, bool keeps_input) = 0;
  /// Backward from the gradient of the output, 0 if it is one number expanded, to the gradient of the input, or to 0 if
  /// everything before this layer is frozen.
  virtual Block backward(Block gradient) = 0;

  std::vector<Parameter> parameters;  ///< in the order in which modules register them
};

/// What Program::kEngine has in place of PyTorch's layers and optimizer.
struct Engine {
  /// The layer `index` of the model. `numbers` and `heap` outlive it.
  std::function<std::unique_ptr<TrainedLayer>(const Numbers& numbers, Heap& heap, Bytes index)> make_layer;
  Bytes scratch = 0;                   ///< workspaces of the library, from its first product on
  Bytes temporaries_of_optimizer = 0;  ///< when its state is there
};

}  // namespace fp8lab::eager
